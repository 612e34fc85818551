#include "io/weights/weight_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <functional>
#include <set>
#include <utility>

#include "base/disk_limit.h"
#include "base/test_folder.h"
#include "io/weights/checksum.h"
#include "io/weights/formula_source.h"
#include "io/weights/safetensors.h"
#include "io/weights/test_files.h"
#include "io/weights/weight_loader.h"

namespace zoetrope::io {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Checksum, SeesEveryByteAndTheirOrder) {
  std::vector<std::byte> data(3000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte(i * 7 + i / 256);
  std::set<uint64_t> sums;
  // Lengths round stripes of 64 and blocks of 1024.
  for (const size_t bytes : {0, 1, 63, 64, 65, 1023, 1024, 1025, 1088, 2048, 2999, 3000}) {
    EXPECT_TRUE(sums.insert(checksum(data.data(), bytes)).second) << bytes;
  }
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] ^= std::byte{1};
    EXPECT_TRUE(sums.insert(checksum(data.data(), data.size())).second) << i;
    data[i] ^= std::byte{1};
  }
  std::swap_ranges(data.begin(), data.begin() + 1024, data.begin() + 1024);
  EXPECT_TRUE(sums.insert(checksum(data.data(), data.size())).second);
  std::vector<std::byte> zeros(2048);
  EXPECT_NE(checksum(zeros.data(), 1024), checksum(zeros.data(), 2048));
}

class WeightCacheTest : public testing::Test {
 protected:
  static constexpr int64_t kCount = 5000;

  WeightCacheTest() { store(1); }

  void store(float factor, const std::string& name = "model.safetensors") {
    SafetensorsWriter writer;
    const Tensor a(DType::kF32, {kCount}), b(DType::kF32, {kCount});
    for (int64_t i = 0; i < kCount; ++i) {
      a.data<float>()[i] = factor * static_cast<float>(i);
      b.data<float>()[i] = -factor * static_cast<float>(i);
    }
    writer.add("a", a);
    writer.add("b", b);
    writer.write(folder_ / name);
  }

  void store_in_place(float factor) {
    store(factor, "other.safetensors");
    rewrite_in_place(folder_ / "model.safetensors", file_bytes(folder_ / "other.safetensors"));
  }

  fs::path cache_folder() const { return folder_ / "cache"; }
  std::vector<fs::path> cache_files() const {
    std::vector<fs::path> files;
    if (!fs::is_directory(cache_folder())) return files;
    for (const auto& entry : fs::directory_iterator(cache_folder())) files.push_back(entry.path());
    return files;
  }

  // Loads a and b as they are; what the notes say, and how many were made.
  struct Loaded {
    std::vector<std::string> notes;
    int made = 0;
    int ticks = 0;
    std::shared_ptr<const Weights> weights;
  };
  Loaded load(const std::string& layout = "copy", WeightCache::Access access = WeightCache::Access::kReadWrite) {
    return load(checkpoint_source(Checkpoint::open(folder_.path(), "model")), layout, access);
  }
  Loaded load(std::shared_ptr<const WeightSource> source, const std::string& layout, WeightCache::Access access,
              size_t memory = 0) {
    Loaded loaded;
    const auto cache = std::make_shared<WeightCache>(cache_folder(), "test", access);
    int64_t told = 0;
    loaded.weights = std::make_shared<Weights>(
        source, Weights::Loading{cache, [&](int64_t done, int64_t) { told = done; }, memory, {}});
    WeightLoader loader(loaded.weights);
    std::map<std::string, const std::byte*> places;
    for (const char* name : {"a", "b"}) {
      loader.add({{name},
                  {{kCount}},
                  layout,
                  kCount * 4,
                  0,
                  [&](std::span<const TensorView> stored, int64_t, std::byte* out) {
                    ++loaded.made;
                    std::memcpy(out, stored[0].raw(), stored[0].bytes());
                  }},
                 [&places, name](const std::byte* at) { places[name] = at; });
    }
    loader.run(1, [&](int64_t, int64_t) { ++loaded.ticks; });
    EXPECT_EQ(told, 2 * kCount * 4);
    const WeightStream::Part a{{{places["a"], kCount * 4}}}, b{{{places["b"], kCount * 4}}};
    const auto stream = loaded.weights->stream({a, b});
    size_t part = 0;
    for (const char* name : {"a", "b"}) {
      const Tensor expected(DType::kF32, {kCount});
      source->read(name, expected);
      const auto use = stream == nullptr ? WeightStream::Use() : stream->use(part++);
      EXPECT_EQ(std::memcmp(places[name], expected.view().raw(), kCount * 4), 0) << name;
    }
    cache->finish();
    loaded.notes = cache->take_notes();
    return loaded;
  }

  // With room for as few weights as it takes.
  Loaded load_streamed(WeightCache::Access access = WeightCache::Access::kReadWrite) {
    return load(checkpoint_source(Checkpoint::open(folder_.path(), "model")), "copy", access, Weights::kFewestParts);
  }

  TestFolder folder_;
};

TEST_F(WeightCacheTest, SecondStartMakesNothing) {
  const Loaded first = load();
  EXPECT_EQ(first.made, 2);
  EXPECT_THAT(first.notes, IsEmpty());
  ASSERT_EQ(cache_files().size(), 1u);
  const Loaded second = load();
  EXPECT_EQ(second.made, 0);
  EXPECT_EQ(second.ticks, 2);
  EXPECT_THAT(second.notes, IsEmpty());
  // Other layouts of the same weights are in another file.
  EXPECT_EQ(load("other").made, 2);
  EXPECT_EQ(cache_files().size(), 2u);
  EXPECT_EQ(load().made, 0);
}

TEST_F(WeightCacheTest, OtherWeightsAreNoticedAndTheCacheIsRemade) {
  load();
  store(2);
  const Loaded other = load();
  EXPECT_EQ(other.made, 2);
  EXPECT_THAT(other.notes,
              ElementsAre(AllOf(HasSubstr(".weights: was made from other weights"), HasSubstr("converted again"))));
  EXPECT_EQ(load().made, 0);
  EXPECT_EQ(cache_files().size(), 1u);
}

TEST_F(WeightCacheTest, WeightsReplacedInPlaceWithTheirTimesKeptAreOthers) {
  const Loaded first = load();
  store_in_place(-1);
  EXPECT_THAT(error_of([&] { first.weights->require_unchanged(); }), HasSubstr("was changed while it was in use"));
  const Loaded other = load();
  EXPECT_EQ(other.made, 2);
  EXPECT_THAT(other.notes, ElementsAre(HasSubstr("was made from other weights")));
  EXPECT_EQ(load().made, 0);
}

TEST_F(WeightCacheTest, EveryKindOfDamageIsNoticed) {
  load();
  const fs::path file = cache_files().at(0);
  const std::string whole = file_bytes(file);
  const auto with_byte = [&](size_t at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    return bytes;
  };
  struct Damage {
    std::string bytes;
    const char* expected;
    int made = 2;
  };
  const Damage cases[] = {
      {"", "is cut off"},
      {whole.substr(0, 4095), "is cut off"},
      {whole.substr(0, 4096), "bytes instead of"},
      {whole.substr(0, whole.size() - 1), "bytes instead of"},
      {whole + "x", "bytes instead of"},
      {with_byte(0), "not a weight cache"},
      {with_byte(50), "not a weight cache"},       // the header's own check
      {with_byte(4096), "is damaged", 1},          // the first byte of the first weight
      {with_byte(4096 + 30000), "is damaged", 1},  // in the midst of the second
      {with_byte(whole.size() - 1), "is damaged"},
  };
  for (const Damage& damage : cases) {
    folder_.write("cache/" + file.filename().string(), damage.bytes);
    const Loaded loaded = load();
    EXPECT_EQ(loaded.made, damage.made) << damage.expected;
    EXPECT_EQ(loaded.ticks, 2);
    EXPECT_THAT(loaded.notes, ElementsAre(AllOf(HasSubstr(file.string()), HasSubstr(damage.expected))));
    EXPECT_EQ(file_bytes(file), whole) << "repacked";
    loaded.weights->require_unchanged();
  }
}

// Headers whose checksum is right, written by a program that has gone wrong or by somebody who wants it to.
TEST_F(WeightCacheTest, CraftedFilesAreRefusedWhateverTheyClaim) {
  load();
  const fs::path file = cache_files().at(0);
  const std::string whole = file_bytes(file);
  constexpr size_t kWord = 8, kFields = 6, kPage = 4096;  // magic, identity, contents, entries, data and file bytes
  const auto with_word = [&](std::string bytes, size_t at, uint64_t value) {
    std::memcpy(bytes.data() + at, &value, kWord);
    return bytes;
  };
  const auto with_field = [&](std::string bytes, size_t field, uint64_t value) {
    bytes = with_word(std::move(bytes), field * kWord, value);
    return with_word(bytes, kFields * kWord,
                     checksum(reinterpret_cast<const std::byte*>(bytes.data()), kFields * kWord));
  };
  std::vector<std::string> crafted;
  const uint64_t values[] = {0, 1, 4096, whole.size(), whole.size() + 1, uint64_t{1} << 32, ~uint64_t{0} - 4095};
  for (const std::string& bytes : {whole, whole.substr(0, kPage), whole.substr(0, kPage + 8), whole + whole}) {
    for (size_t field = 0; field < kFields; ++field) {
      for (const uint64_t value : values) crafted.push_back(with_field(bytes, field, value));
    }
    crafted.push_back(with_field(bytes, 5, bytes.size()));  // as long as it claims to be
  }
  const size_t table = whole.size() - 3 * kWord;  // checksums of two weights, and one of these
  for (size_t entry = 0; entry < 3; ++entry) {
    for (const uint64_t value : values) crafted.push_back(with_word(whole, table + entry * kWord, value));
  }
  // A table that agrees with itself, but not with the weights.
  std::string other = with_word(whole, table, 0);
  other = with_word(other, table + 2 * kWord,
                    checksum(reinterpret_cast<const std::byte*>(other.data()) + table, 2 * kWord));
  crafted.push_back(other);
  for (const std::string& bytes : crafted) {
    if (bytes == whole) continue;
    folder_.write("cache/" + file.filename().string(), bytes);
    const Loaded loaded = load();  // compares every weight against the checkpoint
    EXPECT_EQ(loaded.notes.size(), 1u);
    EXPECT_GE(loaded.made, 1);
    EXPECT_TRUE(file_bytes(file) == whole) << "repacked";
  }
}

TEST_F(WeightCacheTest, WhatCannotBeWrittenIsSaidAndTheRunGoesOn) {
  folder_.write("cache", "a file where the folder should be");
  EXPECT_THAT(load().notes, ElementsAre(AllOf(HasSubstr("cannot be opened"), HasSubstr("converted again")),
                                        AllOf(HasSubstr(cache_folder().string()), HasSubstr("goes on without it"))));
  fs::remove(cache_folder());
  {
    const DiskLimit limit(8192);
    const Loaded loaded = load();
    EXPECT_EQ(loaded.made, 2);
    EXPECT_THAT(loaded.notes, ElementsAre(AllOf(HasSubstr("cannot be written"), HasSubstr("goes on without it"))));
  }
  EXPECT_THAT(cache_files(), IsEmpty());
  EXPECT_EQ(load("copy", WeightCache::Access::kRead).made, 2);
  EXPECT_THAT(cache_files(), IsEmpty());
}

// Many times the same bytes; more of them where the writer was faster than this thread.
TEST_F(WeightCacheTest, AStopLeavesNoFile) {
  const std::vector<std::byte> bytes(size_t{16} << 20);
  std::vector<fs::path> left;
  for (size_t count = 16; count <= 128; count *= 2) {
    WeightCache::Contents contents{"a model", {}, count * bytes.size()};
    for (size_t i = 0; i < count; ++i) contents.entries.push_back({i, i * bytes.size(), bytes.size()});
    {
      WeightCache cache(cache_folder(), "test");
      cache.write(contents, std::vector<const std::byte*>(count, bytes.data()));
      cache.stop();
      EXPECT_THAT(cache.take_notes(), IsEmpty());  // nothing else kept the file away
    }
    left = cache_files();
    if (left.empty()) break;
    fs::remove_all(cache_folder());
  }
  EXPECT_THAT(left, IsEmpty());
}

TEST_F(WeightCacheTest, WeightsBeyondMemoryArePackedIntoTheFile) {
  EXPECT_EQ(load_streamed().made, 2);
  ASSERT_EQ(cache_files().size(), 1u);
  const std::string streamed = file_bytes(cache_files().front());
  EXPECT_EQ(load_streamed().made, 0);
  EXPECT_EQ(load().made, 0);  // the file is that of a start in memory
  fs::remove_all(cache_folder());
  load();
  EXPECT_EQ(file_bytes(cache_files().front()), streamed);
}

TEST_F(WeightCacheTest, AFileThatThisStartHasMadeIsWatchedToo) {
  const Loaded first = load_streamed();
  first.weights->require_unchanged();
  // A second name and other rights are no change of the weights.
  fs::create_hard_link(cache_files().at(0), folder_ / "backup");
  fs::permissions(folder_ / "backup", fs::perms::owner_read | fs::perms::owner_write);
  first.weights->require_unchanged();
  const Loaded second = load_streamed();
  fs::permissions(folder_ / "backup", fs::perms::owner_all);
  second.weights->require_unchanged();
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, cache_files().at(0).c_str(), times, 0), 0);
  EXPECT_THAT(error_of([&] { second.weights->require_unchanged(); }), HasSubstr("was changed while it was in use"));
  EXPECT_THAT(error_of([&] { first.weights->require_unchanged(); }),
              AllOf(HasSubstr(cache_files().at(0).string()), HasSubstr("was changed while it was in use")));
}

TEST_F(WeightCacheTest, WeightsBeyondMemoryNeedTheirFile) {
  {
    const DiskLimit limit(8192);
    EXPECT_THAT(error_of([&] { load_streamed(); }), HasSubstr(cache_folder().string()));
  }
  EXPECT_THAT(cache_files(), IsEmpty());
  // A rank that does not write the cache has a file without a name.
  EXPECT_EQ(load_streamed(WeightCache::Access::kRead).made, 2);
  EXPECT_THAT(cache_files(), IsEmpty());
}

TEST_F(WeightCacheTest, DamagedEntriesAreMadeAnewBeyondMemoryToo) {
  load_streamed();
  std::string bytes = file_bytes(cache_files().front());
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  rewrite_in_place(cache_files().front(), bytes);
  const Loaded loaded = load_streamed();
  EXPECT_EQ(loaded.made, 1);
  EXPECT_THAT(loaded.notes, ElementsAre(AllOf(HasSubstr("is damaged"), HasSubstr("converted again"))));
}

TEST_F(WeightCacheTest, FormulasAreKeptByTheirSeed) {
  const auto formulas = [](uint64_t seed) {
    return std::make_shared<FormulaSource>(
        "random", seed, std::map<std::string, Formula>{{"a", {{kCount}, 0, 1}}, {"b", {{kCount}, 1, 2}}});
  };
  const auto access = WeightCache::Access::kReadWrite;
  EXPECT_EQ(load(formulas(1), "copy", access).made, 2);
  EXPECT_EQ(load(formulas(1), "copy", access).made, 0);
  EXPECT_EQ(load(formulas(2), "copy", access).made, 2);
}

TEST_F(WeightCacheTest, ChangesUnderARunningProgramAreNoticed) {
  const fs::path model = folder_ / "model.safetensors";
  const Loaded first = load();
  first.weights->require_unchanged();
  const Loaded second = load();  // maps the cache
  second.weights->require_unchanged();
  // The cache is written to.
  const fs::path cache = cache_files().at(0);
  std::string bytes = file_bytes(cache);
  folder_.write("cache/" + cache.filename().string(), bytes);
  const auto touched = [](const fs::path& file) {
    const timespec times[2] = {{1, 0}, {1, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  };
  touched(cache);
  EXPECT_THAT(error_of([&] { second.weights->require_unchanged(); }),
              AllOf(HasSubstr(cache.string()), HasSubstr("was changed while it was in use")));
  first.weights->require_unchanged();  // has a copy of its own
  // The checkpoint is written to, replaced, removed.
  const auto refusal = [&](const Loaded& loaded) { return error_of([&] { loaded.weights->require_unchanged(); }); };
  touched(model);
  EXPECT_THAT(refusal(first), AllOf(HasSubstr(model.string()), HasSubstr("was changed while it was in use")));
  const Loaded third = load();
  store(1);
  EXPECT_THAT(refusal(third), HasSubstr("was changed while it was in use"));
  fs::remove(model);
  EXPECT_THAT(refusal(third), HasSubstr("cannot be found any more"));
}

// Whoever writes into the checkpoint while it is loaded gets a refusal, and no cache of half-changed weights.
TEST_F(WeightCacheTest, ChangesWhileLoadingAreRefused) {
  const auto cache = std::make_shared<WeightCache>(cache_folder(), "test");
  const auto change_while_loading = [&](const std::function<void()>& change) {
    const auto weights = std::make_shared<Weights>(checkpoint_source(Checkpoint::open(folder_.path(), "model")),
                                                   Weights::Loading{cache, {}, 0, {}});
    WeightLoader loader(weights);
    loader.add({{"a"}, {{kCount}}, "copy", 4, 0, [&](std::span<const TensorView>, int64_t, std::byte*) { change(); }},
               {});
    return error_of([&] { loader.run(1); });
  };
  EXPECT_THAT(change_while_loading([&] { store(3); }), HasSubstr("was changed while it was in use"));
  EXPECT_THAT(change_while_loading([&] { store_in_place(4); }), HasSubstr("was changed while it was in use"));
  EXPECT_THAT(cache_files(), IsEmpty());
}

// A file system whose times say nothing: the contents do.
TEST_F(WeightCacheTest, ChangesWhileLoadingAreRefusedWhereTimesDoNotShowThem) {
  class ChangingSource final : public WeightSource {
   public:
    explicit ChangingSource(std::shared_ptr<const WeightSource> source) : source_(std::move(source)) {}
    bool contains(const std::string& name) const override { return source_->contains(name); }
    std::vector<std::string> names() const override { return source_->names(); }
    TensorInfo info(const std::string& name) const override { return source_->info(name); }
    std::string where(const std::string& name) const override { return source_->where(name); }
    TensorView mapped(const std::string& name) const override { return source_->mapped(name); }
    void read(const std::string& name, const TensorView& out) const override { source_->read(name, out); }
    std::string identity() const override { return fmt::format("version {}", version); }
    int version = 1;

   private:
    std::shared_ptr<const WeightSource> source_;
  };
  const auto source = std::make_shared<ChangingSource>(checkpoint_source(Checkpoint::open(folder_.path(), "model")));
  const auto cache = std::make_shared<WeightCache>(cache_folder(), "test");
  const auto weights = std::make_shared<Weights>(source, Weights::Loading{cache, {}, 0, {}});
  WeightLoader loader(weights);
  loader.add(
      {{"a"}, {{kCount}}, "copy", 4, 0, [&](std::span<const TensorView>, int64_t, std::byte*) { source->version = 2; }},
      {});
  EXPECT_THAT(error_of([&] { loader.run(1); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("was changed while it was read")));
  EXPECT_THAT(cache_files(), IsEmpty());
}

}  // namespace
}  // namespace zoetrope::io
