// A video that was asked for: what of it is kept in its file, and what of it a client is shown. Knows no queue.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope::server {

enum class JobStatus : uint8_t { kQueued, kInProgress, kCompleted, kFailed };
inline constexpr JobStatus kJobStatuses[] = {JobStatus::kQueued, JobStatus::kInProgress, JobStatus::kCompleted,
                                             JobStatus::kFailed};
const char* status_word(JobStatus status);  // "queued", "in_progress", "completed", "failed"

// How far a run is.
struct Progress {
  std::string phase = "loading";  // then "denoising", "decoding"
  int64_t step = 0, steps = 0;    // done of all
  int64_t layer = 0, layers = 0;  // of the current step
  int64_t frame = 0, frames = 0;  // decoded
  int64_t previews = 0;           // made so far
  std::optional<double> seconds_left;

  // 0 to 99: nine tenths for denoising, the rest for decoding.
  int percent() const;
};

// What is kept in its file.
struct JobRecord {
  std::string id;      // "video_" and 32 hexadecimal digits
  int64_t number = 0;  // in the order of asking
  JobStatus status = JobStatus::kQueued;
  std::string model;
  std::map<std::string, std::string> settings;  // as settings_to_keep()
  // Of the server, that decide the video: as it was queued, and what a budget chose when it was made.
  std::map<std::string, std::string> model_settings;
  std::vector<std::pair<std::string, std::string>> uploads;  // key, name of the file in the job's folder
  int64_t width = 0, height = 0, num_frames = 0, fps = 0;
  int64_t created_at = 0;  // seconds since 1970
  std::optional<int64_t> completed_at;
  std::optional<double> predicted_seconds;
  int64_t predicted_bytes = 0;
  std::optional<int64_t> seed;  // of the finished video
  std::optional<double> seconds_taken;
  std::vector<std::string> warnings;  // that its run has noted
  std::string error;                  // of a failed one
};

std::string job_text(const JobRecord& job);
// Throws Error for a text that job_text() did not write; `where` opens its message.
JobRecord parse_job(std::string_view text, const std::string& where);

// A failed job as it is queued once more, under a new number: nothing of the run that failed is left in it.
JobRecord queued_again(JobRecord failed, int64_t number);

// A new name that nobody can guess.
std::string new_job_id();
bool is_job_id(std::string_view text);

// With what changes while it waits and runs. Guarded by the queue's mutex, but for `cancelled`.
struct Job {
  JobRecord record;
  Progress progress;
  int64_t revision = 0;  // counts changes
  bool deleted = false;
  std::atomic<bool> cancelled = false;  // asked by the run
  std::string preview;                  // GIF of the latest preview; empty: none yet
};

// The `video` object of OpenAI's API, and next to its fields what is ours. `position`: jobs before it; `wait_seconds`:
// until it begins, where that is predicted.
nlohmann::json video_object(const Job& job, int64_t position, std::optional<double> wait_seconds);

}  // namespace zoetrope::server
