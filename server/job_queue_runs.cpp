// The thread that runs the jobs of the queue.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "zoetrope/video.h"

#include "base/error.h"
#include "base/input_file.h"
#include "base/print.h"
#include "base/words.h"
#include "pipeline/model_files/merged_loras.h"
#include "pipeline/outputs/preview_file.h"
#include "pipeline/records/journal.h"
#include "pipeline/stages/phases.h"
#include "server/job_queue.h"
#include "server/video_request.h"

namespace zoetrope::server {
namespace {

using pipeline::GenerateOptions;
using SteadyClock = std::chrono::steady_clock;

// The bytes of an animated picture; `file` is gone afterwards.
std::string gif_of(const Tensor& frames, const std::filesystem::path& file) {
  pipeline::write_preview(frames, file);
  std::string bytes = read_file(file, kMaxTextBytes);
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
  return bytes;
}

// Whether a run failed because its journal is of a server with other models or settings, or is damaged. Such a message
// begins with it, on any rank.
bool refuses_journal(const std::string& message, const std::filesystem::path& journal) {
  return message.starts_with(fmt::format("resume={}: ", journal.string())) ||
         message.starts_with((journal / "").string());
}

}  // namespace

// With the mutex held.
void JobQueue::changed(Job& job) {
  ++job.revision;
  changes_.notify_all();
}

void JobQueue::work() {
  const auto next = [this]() -> JobPointer {
    for (const auto& [number, job] : by_number_)
      if (job->record.status == JobStatus::kQueued) return job;
    return nullptr;
  };
  for (;;) {
    JobPointer job;
    std::string id;  // the record may change once its end is told: a failed one is retried
    {
      std::unique_lock lock(mutex_);
      changes_.wait(lock, [&] { return stopping_ || next() != nullptr; });
      if (stopping_) return;
      job = next();
      id = job->record.id;
      // Its file goes on saying that it is queued, which it is when this process ends.
      job->record.status = JobStatus::kInProgress;
      changed(*job);
    }
    run(job);
    if (!models_.lost().empty()) return;  // the next start counts it
    store_.clear_starts(id);
    delete_oldest();
  }
}

void JobQueue::delete_oldest() {
  std::vector<std::string> ids;
  {
    const std::lock_guard lock(mutex_);
    std::vector<JobPointer> finished;
    for (const auto& [number, job] : by_number_)
      if (job->record.status > JobStatus::kInProgress) finished.push_back(job);
    for (size_t i = 0; i + static_cast<size_t>(options_.most_finished) < finished.size(); ++i) {
      finished[i]->deleted = true;
      jobs_.erase(finished[i]->record.id);
      by_number_.erase(finished[i]->record.number);
      changed(*finished[i]);
      ids.push_back(finished[i]->record.id);
    }
  }
  for (const std::string& id : ids) {
    options_.log(fmt::format("{}: {}: of finished videos the last {} are kept", id,
                             store_.remove(id) ? "deleted" : "to be deleted, but its files are still there",
                             options_.most_finished));
  }
}

Callbacks JobQueue::callbacks_of(const JobPointer& job) {
  struct Times {
    SteadyClock::time_point begin;
    int64_t first = 0;
  };
  const auto times = std::make_shared<Times>();
  // Until the run ends: the rest of this phase at its rate so far, and what the planner says of none.
  const auto left = [times](double done, double total) -> std::optional<double> {
    const double counted = done - static_cast<double>(times->first);
    if (counted <= 0) return std::nullopt;
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - times->begin).count();
    return seconds / counted * (total - done);
  };
  const auto enter = [times](Progress& progress, const char* phase, int64_t done) {
    if (progress.phase != phase) *times = {SteadyClock::now(), done};
    progress.phase = phase;
  };
  Callbacks callbacks;
  callbacks.cancelled = [this, job] { return job->cancelled || stopping_; };
  callbacks.note = [this, job](const std::string& text) {
    options_.log(fmt::format("{}: {}", job->record.id, text));
    for (const std::string& warning : pipeline::warnings_in(text)) {
      const std::string shown = printable(without_folder(job->record.id, warning));
      const std::lock_guard lock(mutex_);
      std::vector<std::string>& known = job->record.warnings;
      if (std::ranges::find(known, shown) != known.end()) continue;  // of both experts, or of a run that begins again
      known.push_back(shown);
      changed(*job);
    }
  };
  callbacks.step = [this, job, enter, left](int64_t done, int64_t total, double) {
    if (done > 0) metrics_.add_step();
    const std::lock_guard lock(mutex_);
    Progress& progress = job->progress;
    enter(progress, "denoising", done);
    progress.step = done;
    progress.steps = total;
    progress.layer = 0;
    progress.seconds_left = left(static_cast<double>(done), static_cast<double>(total));
    changed(*job);
  };
  callbacks.layer = [this, job, left](int64_t done, int64_t total) {
    const std::lock_guard lock(mutex_);
    Progress& progress = job->progress;
    progress.layer = done;
    progress.layers = total;
    const double part = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
    progress.seconds_left = left(static_cast<double>(progress.step) + part, static_cast<double>(progress.steps));
    changed(*job);
  };
  callbacks.frames = [this, job, enter, left](int64_t done, int64_t total) {
    const std::lock_guard lock(mutex_);
    Progress& progress = job->progress;
    enter(progress, "decoding", done);
    progress.layer = 0;
    progress.frame = done;
    progress.frames = total;
    progress.seconds_left = left(static_cast<double>(done), static_cast<double>(total));
    changed(*job);
  };
  callbacks.preview = [this, job](int64_t, const Tensor& frames) {
    std::string picture;
    try {
      picture = gif_of(frames, store_.folder_of(job->record.id) / "preview.gif");
    } catch (const Error& error) {  // no reason to lose the video
      options_.log(fmt::format("{}: no preview: {}", job->record.id, printable(error.what())));
      return;
    }
    const std::lock_guard lock(mutex_);
    job->preview = std::move(picture);
    ++job->progress.previews;
    changed(*job);
  };
  return callbacks;
}

// Long ones are noted beside their video, and go on where a server was killed.
Video JobQueue::run_model(const JobPointer& job) {
  constexpr double kLong = 60;  // seconds
  const std::filesystem::path journal = store_.journal_of(job->record.id);
  GenerateOptions options = options_of(job->record);
  const bool resumes = pipeline::Journal::is_in(journal);
  if (resumes) {
    try {
      options.resume = journal.string();
      return run_model(job, options, true);
    } catch (const Error& error) {
      if (!refuses_journal(error.what(), journal)) throw;
      options_.log(fmt::format("{}: begins again: {}", job->record.id, printable(error.what())));
      options.resume.clear();
    }
  }
  store_.remove_journal(job->record.id);  // that was refused, or what is left of one without its record
  if (job->record.predicted_seconds.value_or(0) > kLong) options.journal = journal.string();
  return run_model(job, options, !resumes);
}

Video JobQueue::run_model(const JobPointer& job, const GenerateOptions& options, bool counts) {
  // Not where the queue ends meanwhile: then it is no crash of this job.
  const auto begins = [&](const GenerateOptions& of_run) {
    const std::lock_guard lock(mutex_);
    job->record.model_settings = settings_of_model(of_run, job->record.settings);
    if (counts && !stopping_) store_.count_start(job->record.id);
  };
  return models_.run(models_.find(job->record.model), options, video_file(options.output), callbacks_of(job), begins);
}

// Saves the end of a job before it is announced. Tries again where the disk is full, say, until somebody makes room.
// False where the server ends first, the job is deleted, or somebody removed its folder.
bool JobQueue::save_until_kept(const Job& job, const JobRecord& record) {
  constexpr auto kBetweenTries = std::chrono::seconds(1);
  std::string told;
  for (;;) {
    try {
      store_.save(record);
      return true;
    } catch (const Error& error) {
      if (stopping()) return false;
      if (!store_.has(record.id)) {
        options_.log(fmt::format("{}: its end is not saved: its folder is gone", record.id));
        return false;
      }
      if (told != error.what())
        options_.log(fmt::format("{}: waits until its end can be saved, or is made again by the next start: {}",
                                 record.id, printable(error.what())));
      told = error.what();
    }
    std::unique_lock lock(mutex_);
    if (job.deleted) return false;
    changes_.wait_for(lock, kBetweenTries, [&] { return job.deleted || stopping(); });
  }
}

void JobQueue::end_cancelled(const Job& job) {
  const bool deleted = [&] {
    const std::lock_guard lock(mutex_);
    return job.deleted;
  }();
  if (deleted) store_.remove(job.record.id);
  options_.log(
      fmt::format("{}: {}", job.record.id, deleted ? "cancelled" : "stopped; it is queued for the next start"));
}

void JobQueue::run(const JobPointer& job) {
  const SteadyClock::time_point begin = SteadyClock::now();
  options_.log(fmt::format("{}: started", job->record.id));
  std::string failure;
  double denoise = 0, decode = 0;
  try {
    const Video video = run_model(job);
    denoise = video.denoise_seconds;
    for (const TimedPhase& phase : video.phases)
      if (phase.phase == pipeline::phases::kDecode) decode = phase.seconds;
    const std::lock_guard lock(mutex_);
    job->record.seed = video.seed;
  } catch (const std::exception& error) {  // Error, or memory that ran out
    constexpr size_t kMostShown = 4096;
    failure = printable(without_folder(job->record.id, error.what())).substr(0, kMostShown);
    if (failure.empty()) failure = "the run failed";
  }
  JobRecord record;
  bool cancelled = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled = job->deleted || ((stopping() || !models_.lost().empty()) && !failure.empty());
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - begin).count();
    record = job->record;
    record.seconds_taken = seconds;
    record.completed_at = std::time(nullptr);
    record.status = failure.empty() ? JobStatus::kCompleted : JobStatus::kFailed;
    record.error = failure;
  }
  cancelled = cancelled || !save_until_kept(*job, record);
  metrics_.add_run(cancelled ? "cancelled" : status_word(record.status), denoise, decode);
  if (cancelled) return end_cancelled(*job);
  options_.log(failure.empty() ? fmt::format("{}: completed in {}", record.id, duration_text(*record.seconds_taken))
                               : fmt::format("{}: failed: {}", record.id, failure));
  bool deleted = false;
  {
    const std::lock_guard lock(mutex_);
    job->record = record;
    job->preview.clear();
    deleted = job->deleted;
    changed(*job);
  }
  if (deleted) store_.remove(record.id);  // meanwhile
}

}  // namespace zoetrope::server
