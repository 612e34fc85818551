#include "pipeline/records/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>
#include <utility>

#include "zoetrope/version.h"

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/unfinished_files.h"
#include "base/words.h"
#include "io/weights/checksum.h"
#include "pipeline/model_files/fingerprint.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kState = "state.safetensors";
constexpr const char* kPrevious = "previous.safetensors";
constexpr const char* kFrames = "frames.f32";
constexpr const char* kDecoder = "decoder.";

// "decoder.1.0"
bool is_decoder_file(std::string_view name) {
  if (!name.starts_with(kDecoder)) return false;
  name.remove_prefix(std::string_view(kDecoder).size());
  const size_t point = name.find('.');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return point != std::string_view::npos && is_number(name.substr(0, point)) && is_number(name.substr(point + 1));
}

// A new journal goes into a folder of its own: what it removes in the end must be its own.
void require_no_other_files(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name == kJournalLock || name == kState || name == kPrevious || name == kSeriesSettings ||
        is_unfinished_file(name))
      continue;
    if (name == kFrames || is_decoder_file(name))
      if (Journal::is_in(folder)) continue;
    throw TakenError(fmt::format("journal={}: holds {} already; name a folder of its own, which may be a new one",
                                 folder.string(), name));
  }
}

void write_at(int descriptor, const TensorView& frame, int64_t offset) {
  const char* from = static_cast<const char*>(frame.raw());
  for (size_t left = frame.bytes(); left > 0;) {
    const ssize_t written = ::pwrite(descriptor, from, left, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("{}", system_message(errno));
    from += written;
    offset += written;
    left -= static_cast<size_t>(written);
  }
}

uint64_t checksum_of(const TensorView& frame) {
  return io::checksum(static_cast<const std::byte*>(frame.raw()), frame.bytes());
}

// "a is 1 there and 2 here" for each key that differs. An older journal lacks keys that were not known then.
std::vector<std::string> differences(const std::map<std::string, std::string>& kept,
                                     const std::map<std::string, std::string>& asked) {
  const auto word = [](const std::map<std::string, std::string>& of, const std::string& key) {
    const auto found = of.find(key);
    return found == of.end() || found->second.empty() ? std::string("unset") : found->second;
  };
  std::vector<std::string> all;
  for (const std::string& key : differing(kept, asked))
    all.push_back(fmt::format("{} is {} there and {} here", key, word(kept, key), word(asked, key)));
  return all;
}

}  // namespace

fs::path decoder_file(const fs::path& folder, int64_t generation, int part) {
  return folder / fmt::format("{}{}.{}", kDecoder, generation, part);
}

std::string resume_note(const std::string& folder) {
  return fmt::format("What is done is noted: resume={} goes on from there", folder);
}

void check_same_run(const RunIdentity& kept, const RunIdentity& asked, const fs::path& folder) {
  if (const std::vector<std::string> settings = differences(kept.settings, asked.settings); !settings.empty()) {
    fail(
        "resume={}: the journal is of a run with other settings: {}; leave them out to go on, give files their old "
        "names, or begin a new run",
        folder.string(), fmt::join(settings, ", "));
  }
  std::map<std::string, std::string> now = asked.files;
  // Older journals do not have the noise.
  std::erase_if(
      now, [&](const auto& file) { return file.first.starts_with(kNoiseLine) && !kept.files.contains(file.first); });
  const std::vector<std::string> files = differing(kept.files, now);
  if (files.empty()) return;
  fail("resume={}: the journal is of a run with another model or other inputs: {}; name those of that run",
       folder.string(), fmt::join(files, ", "));
}

bool Journal::is_in(const fs::path& folder) { return is_there(folder / kState) || is_there(folder / kPrevious); }

JournalLock::JournalLock(const fs::path& folder)
    : FileLock(folder / kJournalLock, fmt::format("journal {}", folder.string()),
               "another process is using it; wait until that run ends, or end it") {}

Journal::Journal(const fs::path& folder, const Note& note) : folder_(folder), note_(note), lock_(folder) {}

Journal::~Journal() {
  try {
    finish_writing();
  } catch (...) {  // of the note: the run ends for another reason
  }
}

std::unique_ptr<Journal> Journal::begin(const fs::path& folder, const RunIdentity& run, const Note& note) {
  std::error_code error;
  const bool made = fs::create_directory(folder, error);
  if (error) fail("journal={}: cannot be made: {}", folder.string(), error.message());
  require_no_other_files(folder);
  std::unique_ptr<Journal> journal(new Journal(folder, note));
  if (is_in(folder)) {
    std::string done;
    try {
      const RunRecord record = journal->read(kState);
      done = record.denoised ? ", with all steps done" : fmt::format(", after {} steps", record.steps_done());
    } catch (const Error&) {  // then it is not said
    }
    throw TakenError(fmt::format(
        "journal={}: holds a run that did not end{}; resume={} goes on with it, removing the folder gives it up",
        folder.string(), done, folder.string()));
  }
  journal->run_ = run;
  try {
    RunRecord start;
    start.run = run;
    journal->write(start, -1);
  } catch (const Error& failure) {
    if (made) journal->complete();
    else fs::remove(folder / kJournalLock, error);
    if (unfinished_files_removed()) fail("journal={}: interrupted before it was begun", folder.string());
    fail("journal={}: cannot be written; name another folder: {}", folder.string(), failure.what());
  }
  return journal;
}

std::unique_ptr<Journal> Journal::resume(const fs::path& folder, const Note& note) {
  std::error_code ignored;
  if (!is_folder(folder)) fail("resume={}: there is no such folder", folder.string());
  if (!is_in(folder)) {
    fail("resume={}: holds no journal of a run; a run that ended has removed it, else begin a new run with journal={}",
         folder.string(), folder.string());
  }
  std::unique_ptr<Journal> journal(new Journal(folder, note));
  try {
    journal->resumed_ = journal->read(kState);
  } catch (const OtherFormat&) {
    throw;
  } catch (const Error& error) {
    if (!is_there(folder / kPrevious)) throw;
    journal->resumed_ = journal->read(kPrevious);
    fs::rename(folder / kPrevious, folder / kState, ignored);  // the next record must not replace the only good one
    if (note) note(fmt::format("Note: {}; goes on from the record before", error.what()));
  }
  RunRecord& record = journal->resumed_;
  journal->run_ = record.run;
  journal->checksums_ = record.frames;
  if (record.run.version != version() && note) {
    note(fmt::format("Note: the journal is of version {}, and this is {}: the rest may differ in its last bits",
                     record.run.version, version()));
  }
  return journal;
}

RunRecord Journal::read(const char* name) const {
  const fs::path file = folder_ / name;
  return RunRecord::from_bytes(read_file(file, SIZE_MAX, InputFile::Kind::kCache), file.string());
}

// At any moment there is a complete record. Where a file system has no links there is no older one.
void Journal::write(const RunRecord& record, int frames) const {
  if (frames >= 0 && ::fdatasync(frames) != 0) fail("{}: {}", (folder_ / kFrames).string(), system_message(errno));
  const std::string bytes = record.to_bytes();
  AtomicFile file(folder_ / kState);
  file.write(bytes.data(), bytes.size());
  file.close();
  std::error_code ignored;
  fs::remove(folder_ / kPrevious, ignored);
  fs::create_hard_link(folder_ / kState, folder_ / kPrevious, ignored);
  file.commit();
}

bool Journal::finish_writing() {
  if (!writing_.valid()) return true;
  try {
    writing_.get();
    failed_ = false;
    return true;
  } catch (const std::exception& error) {
    note_failure(error.what());
    return false;
  }
}

void Journal::note_failure(const std::string& why) {
  if (unfinished_files_removed()) return;  // the run is being ended: the record before it counts
  if (!std::exchange(failed_, true) && note_)
    note_(fmt::format("Note: the journal cannot be written, and the run goes on without: {}", why));
}

void Journal::record(RunRecord next) {
  finish_writing();
  if (frames_failed_) return;  // the place before the frame that is missing stays
  next.run = run_;
  next.frames = checksums_;
  const int frames = frames_ ? frames_->value() : -1;
  writing_ = std::async(std::launch::async, [this, frames, record = std::move(next)] { write(record, frames); });
}

bool Journal::record_now(RunRecord next) {
  record(std::move(next));
  return finish_writing() && !frames_failed_;
}

void Journal::add_frame(const TensorView& frame) {
  if (frames_failed_) return;
  try {
    if (!frames_) {
      const fs::path file = folder_ / kFrames;
      frames_.emplace(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
      if (frames_->value() < 0) fail("{}: {}", file.string(), system_message(errno));
    }
    write_at(frames_->value(), frame, frames() * static_cast<int64_t>(frame.bytes()));
    checksums_.push_back(checksum_of(frame));
  } catch (const Error& error) {
    frames_failed_ = true;
    note_failure(error.what());
  }
}

void Journal::read_frame(int64_t index, const TensorView& frame) const {
  if (index >= frames()) fail("{}: frame {} is missing", (folder_ / kFrames).string(), index);
  const InputFile file(folder_ / kFrames, InputFile::Kind::kCache);
  file.read(static_cast<uint64_t>(index) * frame.bytes(), frame.raw(), frame.bytes());
  if (checksum_of(frame) != checksums_.at(static_cast<size_t>(index)))
    fail("{}: frame {} is damaged: its checksum is another", (folder_ / kFrames).string(), index);
}

void Journal::keep_frames(int64_t count) {
  if (count < frames()) checksums_.resize(static_cast<size_t>(count));
}

void Journal::complete() {
  finish_writing();
  std::error_code ignored;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
    const std::string name = entry.path().filename().string();
    if (is_decoder_file(name) || is_unfinished_file(name)) files.push_back(entry.path());
  }
  for (const char* name : {kState, kPrevious, kFrames, kJournalLock}) files.push_back(folder_ / name);
  for (const fs::path& file : files) fs::remove(file, ignored);
  fs::remove(folder_, ignored);
}

}  // namespace zoetrope::pipeline
