// The state folder: a folder per job with its file job.json, its uploads and its video. Not the queue, and no thread of
// its own; functions for different jobs may be called at once.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file_lock.h"
#include "base/input_file.h"
#include "server/job.h"
#include "server/video_request.h"

namespace zoetrope::server {

class JobStore {
 public:
  // Creates the folder, whose parent must exist. Without a name a temporary one, which goes with this object. Throws
  // Error where that is not possible, and where another server uses it.
  explicit JobStore(const std::filesystem::path& folder);
  JobStore(const JobStore&) = delete;
  JobStore& operator=(const JobStore&) = delete;
  ~JobStore();

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path folder_of(const std::string& id) const { return folder_ / id; }
  bool has(const std::string& id) const { return is_there(folder_of(id)); }
  std::filesystem::path video_of(const std::string& id) const { return folder_ / id / "video.mp4"; }
  std::filesystem::path journal_of(const std::string& id) const { return folder_ / id / "journal"; }

  // Writes the uploads into the folder of a new job, and names them in its record. The job is there once it is saved.
  void add_uploads(JobRecord& job, const std::vector<Upload>& uploads);
  void save(const JobRecord& job);
  // Runs of a job that have begun and not ended: those that were running when their server was killed. A plain file,
  // since from a signal on no other can be written.
  void count_start(const std::string& id) noexcept;
  void clear_starts(const std::string& id) noexcept;
  int64_t starts(const std::string& id) const noexcept;

  void remove_journal(const std::string& id) noexcept;
  // Deletes the job's record, and leaves its files. False where that fails: the job then still exists.
  bool forget(const std::string& id) noexcept;
  // All of it, likewise. What is left after a crash in between is removed by the next load().
  bool remove(const std::string& id) noexcept;

  // The jobs in the order of their numbers, without the files that a killed server had not finished. `notes`: a line
  // for each folder that was damaged, and is now in damaged/.
  std::vector<JobRecord> load(std::vector<std::string>& notes);

 private:
  std::filesystem::path folder_;
  bool temporary_ = false;
  std::optional<FileLock> lock_;
};

}  // namespace zoetrope::server
