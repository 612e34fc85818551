// A folder in which a run notes what it has done, so that another process can go on from there: the newest record and
// the one before it, the frames that are decoded, and what the decoder remembers. Kept by rank 0, but for the decoder's
// files: each rank that decodes writes its rows.
//
// Files: state.safetensors and previous.safetensors (run_record.h), frames.f32 ([frames, H, W, 3] F32), decoder.G.P
// (generation G, part P) and lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/descriptor.h"
#include "base/file_lock.h"
#include "pipeline/records/run_record.h"

namespace zoetrope::pipeline {

// What the key `journal` says for none.
inline constexpr const char* kNoJournal = "none";

// The file of series_journal.h in the same folder.
inline constexpr const char* kSeriesSettings = "settings.json";

// Held by the process that uses the folder, in the file of this name. Throws TakenError where another one does.
inline constexpr const char* kJournalLock = "lock";
struct JournalLock : FileLock {
  explicit JournalLock(const std::filesystem::path& folder);
};

class Journal {
 public:
  using Note = std::function<void(const std::string&)>;

  // A new journal. Its parent folder must exist. Throws TakenError where the folder has a journal already, or other
  // files, or is in use, and Error where it cannot be written.
  static std::unique_ptr<Journal> begin(const std::filesystem::path& folder, const RunIdentity& run, const Note& note);
  // That of a run that did not end. Throws Error where there is none, where another process uses it, and where neither
  // of its records can be read; goes back to the older record with a note.
  static std::unique_ptr<Journal> resume(const std::filesystem::path& folder, const Note& note);
  ~Journal();  // waits for what is being written; the folder stays

  // Whether a folder has the records of a run.
  static bool is_in(const std::filesystem::path& folder);

  // What the run had done; of a new journal nothing.
  const RunRecord& resumed() const { return resumed_; }

  // Written by another thread; waits for the record before. Where it cannot be written the run goes on, and a note says
  // so, once until it works again. Identity and frames are the journal's.
  void record(RunRecord next);
  // Likewise, but returns when it is on the disk, or with false.
  bool record_now(RunRecord next);

  // Frames of the output, [H, W, 3] F32 contiguous, in the order in which it gets them.
  void add_frame(const TensorView& frame);
  int64_t frames() const { return static_cast<int64_t>(checksums_.size()); }
  void read_frame(int64_t index, const TensorView& frame) const;
  // Forgets the frames from this one on.
  void keep_frames(int64_t count);

  // The first failure since the journal could be written last is told.
  void note_failure(const std::string& why);

  // The run is complete: removes the files and the folder.
  void complete();

 private:
  Journal(const std::filesystem::path& folder, const Note& note);
  RunRecord read(const char* name) const;
  void write(const RunRecord& record, int frames /* descriptor, −1: none yet */) const;  // on the writing thread
  bool finish_writing();

  const std::filesystem::path folder_;
  const Note note_;
  const JournalLock lock_;
  std::optional<Descriptor> frames_;  // opened with the first frame
  RunIdentity run_;
  RunRecord resumed_;
  std::vector<uint64_t> checksums_;  // of the frames
  std::future<void> writing_;
  bool failed_ = false;
  bool frames_failed_ = false;  // none can be added behind one that is missing
};

// What journal files hold of decoder generation `generation`, part `part`.
std::filesystem::path decoder_file(const std::filesystem::path& folder, int64_t generation, int part);

// What a run says that ends before its end.
std::string resume_note(const std::string& folder);

// Throws Error "resume=FOLDER: …" that names what differs where the journal is of another run.
void check_same_run(const RunIdentity& kept, const RunIdentity& asked, const std::filesystem::path& folder);

}  // namespace zoetrope::pipeline
