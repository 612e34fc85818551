#include "pipeline/records/decode_journal.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "io/weights/checksum.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/halo_ranks.h"
#include "trace/elapsed.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kDecodeRecord = "record of decoding";

uint64_t checksum_of(const void* data, size_t bytes) {
  return io::checksum(static_cast<const std::byte*>(data), bytes);
}

json place_of(const DecodeState& state) { return {state.segment, state.video, state.latent_frames}; }

// At the end of a file, behind the text that says what is in it.
struct Ending {
  uint64_t bytes, checksum;  // of the text
};

}  // namespace

struct RememberedFrames::Part {
  struct Entry {
    IndexRange rows;
    Shape shape;  // of the whole picture; rank 0: empty
    uint64_t offset = 0, bytes = 0, checksum = 0;
    size_t row_bytes() const { return bytes / static_cast<uint64_t>(rows.size()); }
  };
  explicit Part(const fs::path& path) : file(path, InputFile::Kind::kCache) {}

  void read_entries(const fs::path& path, const DecodeState& state, DType dtype);
  void check(const fs::path& path) const;

  InputFile file;
  std::vector<Entry> entries;
};

void RememberedFrames::Part::read_entries(const fs::path& path, const DecodeState& state, DType dtype) {
  Ending ending{};
  if (file.bytes() < sizeof ending) fail("{}: is cut short", path.string());
  file.read(file.bytes() - sizeof ending, &ending, sizeof ending);
  if (ending.bytes > file.bytes() - sizeof ending) fail("{}: is cut short or damaged", path.string());
  const uint64_t data = file.bytes() - sizeof ending - ending.bytes;
  std::string text(ending.bytes, '\0');
  file.read(data, text.data(), text.size());
  if (checksum_of(text.data(), text.size()) != ending.checksum) fail("{}: is damaged", path.string());
  try {
    const json root = parse_json(text, path.string());
    if (root.at("dtype").get<std::string>() != dtype_name(dtype)) fail("{}: is of another dtype", path.string());
    if (root.at("place") != place_of(state)) fail("{}: is of another place of the run than its record", path.string());
    for (const json& one : root.at("frames")) {
      Entry& entry = entries.emplace_back();
      if (one.is_null()) continue;
      entry.rows = {one.at("begin").get<int64_t>(), one.at("end").get<int64_t>()};
      entry.shape = {one.at("height").get<int64_t>(), one.at("width").get<int64_t>(),
                     one.at("channels").get<int64_t>()};
      one.at("offset").get_to(entry.offset);
      one.at("checksum").get_to(entry.checksum);
      entry.bytes = static_cast<uint64_t>(entry.rows.size() * entry.shape[1] * entry.shape[2]) * dtype_size(dtype);
      if (entry.rows.size() <= 0 || entry.offset > data || entry.bytes > data - entry.offset)
        fail("{}: is cut short", path.string());
    }
  } catch (const json::exception& error) {
    fail("{}: is damaged: {}", path.string(), error.what());
  }
}

void RememberedFrames::Part::check(const fs::path& path) const {
  std::string bytes;
  for (const Entry& entry : entries) {
    bytes.resize(entry.bytes);
    file.read(entry.offset, bytes.data(), bytes.size());
    if (entry.bytes > 0 && checksum_of(bytes.data(), bytes.size()) != entry.checksum)
      fail("{}: is damaged: a checksum is not that of its contents", path.string());
  }
}

RememberedFrames::RememberedFrames(const fs::path& folder, const DecodeState& state, DType dtype, IndexRange rows,
                                   int64_t latent_rows) {
  for (int part = 0; part < state.parts; ++part) {
    const fs::path path = decoder_file(folder, state.generation, part);
    parts_.push_back(std::make_unique<Part>(path));
    parts_.back()->read_entries(path, state, dtype);
    if (parts_.back()->entries.size() != parts_.front()->entries.size()) fail("{}: is of another model", path.string());
    const IndexRange theirs = rows_of_part(latent_rows, state.parts, part);
    if (theirs.end >= rows.begin && theirs.begin <= rows.end) parts_.back()->check(path);  // with its neighbours' rows
  }
}
RememberedFrames::~RememberedFrames() = default;

Shape RememberedFrames::shape(size_t index) const {
  const auto& entries = parts_.front()->entries;
  return index < entries.size() ? entries[index].shape : Shape{};
}

void RememberedFrames::read(size_t index, int64_t row, const TensorView& to) const {
  for (const std::unique_ptr<Part>& part : parts_) {
    const Part::Entry& entry = part->entries.at(index);
    if (!entry.rows.contains(row)) continue;
    ZT_CHECK(to.bytes() == entry.row_bytes(), "a row of {} bytes instead of {}", to.bytes(), entry.row_bytes());
    const auto place = static_cast<uint64_t>(row - entry.rows.begin);
    return part->file.read(entry.offset + place * entry.row_bytes(), to.raw(), to.bytes());
  }
  ZT_CHECK(false, "row {} of remembered frame {} is in no part", row, index);
}

void write_remembered(const fs::path& path, const DecodeState& state, DType dtype,
                      const std::vector<RememberedRows>& frames) {
  std::error_code ignored;
  fs::remove(path, ignored);  // of an older record
  AtomicFile file(path);
  json entries = json::array();
  uint64_t offset = 0;
  std::string bytes;
  for (const RememberedRows& frame : frames) {
    if (!frame.values) {
      entries.push_back(nullptr);
      continue;
    }
    const int64_t width = frame.values.extent(1), channels = frame.values.extent(2);
    const size_t row = static_cast<size_t>(width * channels) * dtype_size(dtype);
    bytes.resize(row * static_cast<size_t>(frame.values.extent(0)));
    for (int64_t y = 0; y < frame.values.extent(0); ++y)
      std::memcpy(bytes.data() + static_cast<size_t>(y) * row, frame.values.select(0, y).raw(), row);
    file.write(bytes.data(), bytes.size());
    entries.push_back({{"begin", frame.rows.begin},
                       {"end", frame.rows.end},
                       {"height", frame.height},
                       {"width", width},
                       {"channels", channels},
                       {"offset", offset},
                       {"checksum", checksum_of(bytes.data(), bytes.size())}});
    offset += bytes.size();
  }
  const std::string text =
      exact_json_text(json{{"dtype", dtype_name(dtype)}, {"place", place_of(state)}, {"frames", entries}});
  const Ending ending{text.size(), checksum_of(text.data(), text.size())};
  file.write(text.data(), text.size());
  file.write(&ending, sizeof ending);
  file.commit();
}

DecodeJournal::DecodeJournal(Setup setup, comm::Communicator& decoders)
    : setup_(std::move(setup)), decoders_(decoders) {
  if (setup_.from == nullptr) return;
  generation_ = 1 - setup_.from->generation;
  std::string problem;
  try {
    const IndexRange rows = rows_of_part(setup_.latent_rows, decoders.size(), decoders.rank());
    remembered_ =
        std::make_unique<RememberedFrames>(setup_.folder, *setup_.from, setup_.dtype, rows, setup_.latent_rows);
    const Tensor frame(DType::kF32, setup_.frame);
    for (int64_t i = 0; setup_.journal != nullptr && i < setup_.kept_frames; ++i) setup_.journal->read_frame(i, frame);
  } catch (const Error& error) {
    problem = error.what();
  }
  if (on_every_rank(decoders, problem.empty())) return;
  remembered_.reset();
  if (setup_.note) {
    setup_.note(fmt::format("Note: decoding begins again with the first frame of the clip: {}",
                            problem.empty() ? "another rank cannot read its part of the journal" : problem));
  }
}

// Rank 0 decides: a record may take a twentieth of the time, or be too small to matter.
bool DecodeJournal::due(const std::vector<RememberedRows>& values) {
  constexpr double kShare = 0.05;
  constexpr int64_t kSmall = 64 << 20;  // bytes
  int64_t bytes = 0;
  for (const RememberedRows& frame : values)
    if (frame.values) bytes += frame.values.size() * static_cast<int64_t>(dtype_size(setup_.dtype));
  uint8_t is_due = bytes <= kSmall || cost_ <= kShare * trace::seconds_since(last_) ? 1 : 0;
  if (decoders_.size() > 1) decoders_.broadcast(0, &is_due, 1, kDecodeRecord);
  return is_due != 0;
}

void DecodeJournal::record(int64_t video, int64_t done, int64_t frames, const std::vector<RememberedRows>& values) {
  const auto begin = trace::Clock::now();
  std::string problem;
  const DecodeState state{setup_.segment, video, done, frames, decoders_.size(), generation_};
  try {
    write_remembered(decoder_file(setup_.folder, generation_, decoders_.rank()), state, setup_.dtype, values);
  } catch (const Error& error) {
    problem = error.what();
  }
  uint8_t recorded = on_every_rank(decoders_, problem.empty()) ? 1 : 0;
  if (setup_.journal != nullptr && recorded == 0) {
    setup_.journal->note_failure(problem.empty() ? "another rank cannot write its part" : problem);
  } else if (setup_.journal != nullptr) {
    RunRecord next = setup_.record();
    next.decode = state;
    recorded = setup_.journal->record_now(std::move(next)) ? 1 : 0;
  }
  if (decoders_.size() > 1) decoders_.broadcast(0, &recorded, 1, kDecodeRecord);
  if (recorded != 0) generation_ = 1 - generation_;  // else the files of the record before stay
  cost_ = trace::seconds_since(begin);
  last_ = trace::Clock::now();
}

void DecodeJournal::after(int64_t video, int64_t done, int64_t frames, const std::vector<RememberedRows>& values) {
  if (done < setup_.latent_frames && due(values)) record(video, done, frames, values);
}

}  // namespace zoetrope::pipeline
