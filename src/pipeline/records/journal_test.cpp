// Records and the folder that keeps them. What resumed runs compute is resume_test.cpp.
#include "pipeline/records/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/version.h"

#include "base/disk_limit.h"
#include "base/error.h"
#include "base/test_folder.h"
#include "pipeline/records/decode_journal.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Tensor counting(const Shape& shape, float first = 0) {
  Tensor tensor(DType::kF32, shape);
  float* values = tensor.view().data<float>();
  for (int64_t i = 0; i < tensor.view().size(); ++i) values[i] = first + static_cast<float>(i);
  return tensor;
}

std::vector<float> values_of(const Tensor& tensor) {
  const float* values = tensor.view().data<float>();
  return {values, values + tensor.view().size()};
}

RunIdentity identity() { return {{{"prompt", "a red cat"}}, {{"model/a.safetensors", "01"}}, version(), {7, -1}}; }

RunRecord full_record() {
  RunRecord record;
  record.run = identity();
  record.segment = 2;
  record.latents = counting({2, 3, 1, 2, 2});
  record.tail = counting({1, 2, 2, 3}, 50);
  record.denoise.solver = {5, {2, 1}, {{1.5f, -2}, {0.1f, 1e-30f}}};
  record.denoise.cache = {0.1, 1.0 / 3, -1e-300};
  record.denoise.embedding = {0.25f, -0.5f};
  record.denoise.reuse_error = 1.0 / 11;
  record.denoise.largest_reuse_error = 0.2;
  record.denoise.pattern = "CCrCr";
  record.denoise.full_seconds = 1.0 / 7;
  record.denoise.full_step = 3;
  record.denoise.full_latents = counting({2, 3, 1, 2, 2}, 9);
  record.decode = DecodeState{2, 1, 3, 9, 2, 1};
  record.step_cache = StepCacheReport{"Drift cache", "CCr", 1, 0.3, 1.0 / 9, {}, {}};
  record.frames = {UINT64_MAX, 0, 12345678901234567890u};
  return record;
}

// As versions without the drift cache wrote it.
TEST(RunRecord, NeedsNoErrorsOfReuse) {
  RunRecord record = full_record();
  record.denoise.reuse_error = record.denoise.largest_reuse_error = -1;
  record.step_cache->reuse_error.reset();
  const std::string bytes = record.to_bytes();
  EXPECT_EQ(bytes.find("reuse_error"), std::string::npos);
  const RunRecord read = RunRecord::from_bytes(bytes, "state");
  EXPECT_LT(read.denoise.reuse_error, 0);
  EXPECT_LT(read.denoise.largest_reuse_error, 0);
  EXPECT_FALSE(read.step_cache->reuse_error);
}

TEST(RunRecord, IsReadAsItWasWritten) {
  const RunRecord wrote = full_record(), read = RunRecord::from_bytes(wrote.to_bytes(), "state");
  EXPECT_EQ(read.run.settings, wrote.run.settings);
  EXPECT_EQ(read.run.files, wrote.run.files);
  EXPECT_EQ(read.run.version, wrote.run.version);
  EXPECT_EQ(read.run.seeds, wrote.run.seeds);
  EXPECT_EQ(read.segment, 2);
  EXPECT_FALSE(read.denoised);
  EXPECT_EQ(read.latents.shape(), wrote.latents.shape());
  EXPECT_EQ(values_of(read.latents), values_of(wrote.latents));
  EXPECT_EQ(values_of(read.tail), values_of(wrote.tail));
  EXPECT_EQ(read.steps_done(), 5);
  EXPECT_EQ(read.denoise.solver.counters, wrote.denoise.solver.counters);
  EXPECT_EQ(read.denoise.solver.arrays, wrote.denoise.solver.arrays);
  EXPECT_EQ(read.denoise.cache, wrote.denoise.cache);
  EXPECT_EQ(read.denoise.reuse_error, 1.0 / 11);
  EXPECT_EQ(read.denoise.largest_reuse_error, 0.2);
  EXPECT_EQ(read.denoise.embedding, wrote.denoise.embedding);
  EXPECT_EQ(read.denoise.pattern, wrote.denoise.pattern);
  EXPECT_EQ(read.denoise.full_seconds, wrote.denoise.full_seconds);
  EXPECT_EQ(read.denoise.full_step, 3);
  EXPECT_EQ(values_of(read.denoise.full_latents), values_of(wrote.denoise.full_latents));
  EXPECT_FALSE(read.denoise.velocity);
  ASSERT_TRUE(read.decode.has_value());
  EXPECT_EQ(read.decode->latent_frames, 3);
  EXPECT_EQ(read.decode->parts, 2);
  EXPECT_EQ(read.frames, wrote.frames);
  ASSERT_TRUE(read.step_cache.has_value());
  EXPECT_EQ(read.step_cache->pattern, "CCr");
  EXPECT_EQ(read.step_cache->seconds_saved, 0.3);
  EXPECT_EQ(read.step_cache->reuse_error, 1.0 / 9);
}

TEST(RunRecord, AnyFlippedByteAndAnyCutAreRefused) {
  const std::string bytes = full_record().to_bytes();
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    EXPECT_THROW(RunRecord::from_bytes(flipped, "state"), Error) << at;
    EXPECT_THROW(RunRecord::from_bytes(bytes.substr(0, at), "state"), Error) << at;
  }
}

TEST(RunRecord, ThoseOfAnotherFormatAreRefused) {
  for (const char* format : {"1", "3"}) {
    std::string bytes = full_record().to_bytes();
    const std::string key = "\"zoetrope_journal\":\"2\"";
    bytes.replace(bytes.find(key), key.size(), fmt::format("\"zoetrope_journal\":\"{}\"", format));
    EXPECT_THROW(RunRecord::from_bytes(bytes, "state"), OtherFormat);
    EXPECT_THAT(
        error_of([&] { RunRecord::from_bytes(bytes, "state"); }),
        AllOf(HasSubstr("state"), HasSubstr(fmt::format("format {}", format)), HasSubstr("the version that wrote it")));
  }
}

struct Notes {
  std::vector<std::string> lines;
  Journal::Note take = [this](const std::string& line) { lines.push_back(line); };
};

RunRecord after_step(int64_t step) {
  RunRecord record;
  record.latents = counting({1, 1, 1, 1, 2}, static_cast<float>(step));
  record.denoise.solver.next = step;
  return record;
}

TEST(Journal, GoesOnWithTheLastRecord) {
  const TestFolder folder;
  const fs::path place = folder / "journal";
  Notes notes;
  Journal::begin(place, identity(), notes.take)->record(after_step(3));
  const auto journal = Journal::resume(place, notes.take);
  EXPECT_EQ(journal->resumed().steps_done(), 3);
  EXPECT_EQ(journal->resumed().run.seeds, identity().seeds);
  journal->complete();
  EXPECT_FALSE(fs::exists(place));
  EXPECT_THAT(notes.lines, IsEmpty());
}

TEST(Journal, IsNotBegunAgainAndUsedOnce) {
  const TestFolder folder;
  const fs::path place = folder / "journal";
  auto journal = Journal::begin(place, identity(), {});
  journal->record(after_step(2));
  EXPECT_THAT(error_of([&] { Journal::resume(place, {}); }), HasSubstr("another process is using it"));
  journal.reset();
  EXPECT_THAT(error_of([&] { Journal::begin(place, identity(), {}); }),
              AllOf(HasSubstr("did not end, after 2 steps"), HasSubstr("resume=")));
  EXPECT_EQ(Journal::resume(place, {})->resumed().steps_done(), 2);
}

TEST(Journal, WhereThereIsNoneItSaysSo) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { Journal::resume(folder / "none", {}); }), HasSubstr("there is no such folder"));
  EXPECT_THAT(error_of([&] { Journal::resume(folder.path(), {}); }), HasSubstr("holds no journal of a run"));
  EXPECT_THAT(error_of([&] { Journal::begin(folder / "a" / "b", identity(), {}); }), HasSubstr("cannot be made"));
}

TEST(Journal, ADamagedRecordGivesWayToTheOneBefore) {
  const TestFolder folder;
  const fs::path place = folder / "journal";
  {
    const auto journal = Journal::begin(place, identity(), {});
    journal->record(after_step(1));
    journal->record(after_step(2));
  }
  Notes notes;
  const std::string whole = file_bytes(place / "state.safetensors");
  folder.write("journal/state.safetensors", whole.substr(0, whole.size() - 1));
  EXPECT_EQ(Journal::resume(place, notes.take)->resumed().steps_done(), 1);
  EXPECT_THAT(notes.lines, ElementsAre(HasSubstr("goes on from the record before")));
  folder.write("journal/previous.safetensors", "nothing");
  folder.write("journal/state.safetensors", "nothing");
  EXPECT_THAT(error_of([&] { Journal::resume(place, {}); }), HasSubstr("previous.safetensors"));
}

TEST(Journal, AFullDiskEndsNoRun) {
  const TestFolder folder;
  Notes notes;
  const auto journal = Journal::begin(folder / "journal", identity(), notes.take);
  const Tensor frame = counting({64, 64, 3});
  {
    const DiskLimit full(4096);
    RunRecord large = after_step(1);
    large.denoise.velocity = counting({4096});
    journal->record(std::move(large));
    journal->record(after_step(2));  // waits for the one before
    journal->add_frame(frame);
  }
  EXPECT_THAT(notes.lines, testing::SizeIs(testing::AnyOf(1, 2)));
  EXPECT_THAT(notes.lines.front(), HasSubstr("cannot be written, and the run goes on without"));
  EXPECT_FALSE(journal->record_now(after_step(3))) << "a frame is missing, so later places cannot be gone on from";
}

TEST(Journal, OneThatCannotBeBegunLeavesNothing) {
  const TestFolder folder;
  fs::create_directory(folder / "mine");
  Notes notes;
  const DiskLimit full(16);
  for (const char* name : {"new", "mine"})
    EXPECT_THAT(error_of([&] { Journal::begin(folder / name, identity(), notes.take); }),
                AllOf(HasSubstr(name), HasSubstr("cannot be written; name another folder: ")));
  EXPECT_FALSE(fs::exists(folder / "new"));
  EXPECT_TRUE(fs::is_empty(folder / "mine"));
  EXPECT_THAT(notes.lines, IsEmpty()) << "the run does not go on";
}

TEST(Journal, RecordsAreWrittenAgainWhenThereIsRoom) {
  const TestFolder folder;
  Notes notes;
  const auto journal = Journal::begin(folder / "journal", identity(), notes.take);
  {
    const DiskLimit full(16);
    EXPECT_FALSE(journal->record_now(after_step(1)));
  }
  EXPECT_TRUE(journal->record_now(after_step(2)));
  EXPECT_THAT(notes.lines, ElementsAre(HasSubstr("cannot be written")));
}

TEST(Journal, AFolderWithOtherFilesIsNotTaken) {
  const TestFolder folder;
  fs::create_directory(folder / "mine");
  folder.write("mine/decoder.onnx", "x");
  EXPECT_THAT(error_of([&] { Journal::begin(folder / "mine", identity(), {}); }),
              AllOf(HasSubstr("holds decoder.onnx"), HasSubstr("folder of its own")));
  const auto journal = Journal::begin(folder / "j", identity(), {});
  folder.write("j/decoder.safetensors", "x");
  folder.write("j/decoder.0.1", "x");
  journal->complete();
  EXPECT_TRUE(fs::exists(folder / "j" / "decoder.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "j" / "decoder.0.1"));
}

TEST(Journal, FramesAreReadAsTheyWereAdded) {
  const TestFolder folder;
  const fs::path place = folder / "journal";
  const Tensor a = counting({2, 3, 3}, 1), b = counting({2, 3, 3}, 100);
  {
    const auto journal = Journal::begin(place, identity(), {});
    journal->add_frame(a);
    journal->add_frame(b);
    journal->record(after_step(1));
  }
  const auto journal = Journal::resume(place, {});
  EXPECT_EQ(journal->frames(), 2);
  const Tensor read(DType::kF32, {2, 3, 3});
  journal->read_frame(1, read);
  EXPECT_EQ(values_of(read), values_of(b));
  journal->keep_frames(1);
  journal->add_frame(a);
  journal->read_frame(1, read);
  EXPECT_EQ(values_of(read), values_of(a));
  folder.write("journal/frames.f32", std::string(2 * 72, 'x'));
  EXPECT_THAT(error_of([&] { journal->read_frame(0, read); }), AllOf(HasSubstr("frame 0"), HasSubstr("damaged")));
}

TEST(Journal, NamesWhatDiffers) {
  RunIdentity kept = identity(), asked = identity();
  EXPECT_NO_THROW(check_same_run(kept, asked, "j"));
  asked.settings = {{"prompt", "a blue dog"}, {"image", "x.png"}};
  EXPECT_THAT(error_of([&] { check_same_run(kept, asked, "j"); }),
              AllOf(HasSubstr("resume=j"), HasSubstr("prompt is a red cat there and a blue dog here"),
                    HasSubstr("image is unset there and x.png here")));
  asked = identity();
  asked.settings["a_key_of_today"] = "";  // that an older journal does not have
  EXPECT_NO_THROW(check_same_run(kept, asked, "j"));
  asked = identity();
  asked.files["latents n.safetensors"] = "04";  // likewise
  EXPECT_NO_THROW(check_same_run(kept, asked, "j"));
  asked = identity();
  asked.files = {{"model/a.safetensors", "02"}, {"model/b.safetensors", "03"}};
  EXPECT_THAT(error_of([&] { check_same_run(kept, asked, "j"); }),
              AllOf(HasSubstr("another model"), HasSubstr("model/a.safetensors, model/b.safetensors")));
}

// Three parts write the rows of two frames, of which one is empty; another split reads them.
TEST(RememberedFrames, AreReadByAnySplit) {
  const TestFolder folder;
  constexpr int kParts = 3;
  constexpr int64_t kLatentRows = 5, kScale = 2, kRows = kLatentRows * kScale;
  const Tensor whole = counting({kRows, 4, 3});
  int64_t begin = 0;
  for (int part = 0; part < kParts; ++part) {
    const int64_t end = begin + kScale * (part < 2 ? 2 : 1);
    std::vector<RememberedRows> frames(2);
    frames[1] = {whole.view().slice(0, begin, end), {begin, end}, kRows};
    write_remembered(decoder_file(folder.path(), 1, part), {0, 0, 2, 5, kParts, 1}, DType::kF32, frames);
    begin = end;
  }
  const DecodeState state{0, 0, 2, 5, kParts, 1};
  const RememberedFrames read(folder.path(), state, DType::kF32, {0, kLatentRows}, kLatentRows);
  EXPECT_EQ(read.shape(0).rank(), 0);
  EXPECT_EQ(read.shape(1), (Shape{kRows, 4, 3}));
  const Tensor row(DType::kF32, {4, 3});
  for (int64_t y = 0; y < kRows; ++y) {
    read.read(1, y, row);
    EXPECT_EQ(row.view().data<float>()[5], whole.view().select(0, y).data<float>()[5]) << y;
  }
  EXPECT_THROW(RememberedFrames(folder.path(), state, DType::kBF16, {0, 5}, kLatentRows), Error);
  for (const DecodeState& other :
       {DecodeState{1, 0, 2, 5, kParts, 1}, {0, 1, 2, 5, kParts, 1}, {0, 0, 3, 9, kParts, 1}}) {
    EXPECT_THAT(error_of([&] {
                  RememberedFrames(folder.path(), other, DType::kF32, {0, 5}, kLatentRows);
                }),
                HasSubstr("of another place of the run"));
  }

  const fs::path middle = decoder_file(folder.path(), 1, 1);
  const std::string bytes = file_bytes(middle);
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    folder.write("decoder.1.1", flipped);
    EXPECT_THROW(RememberedFrames(folder.path(), state, DType::kF32, {2, 3}, kLatentRows), Error) << at;
    folder.write("decoder.1.1", bytes.substr(0, at));
    EXPECT_THROW(RememberedFrames(folder.path(), state, DType::kF32, {2, 3}, kLatentRows), Error) << at;
  }
  fs::remove(middle);
  EXPECT_THROW(RememberedFrames(folder.path(), state, DType::kF32, {0, 1}, kLatentRows), Error);
}

}  // namespace
}  // namespace zoetrope::pipeline
