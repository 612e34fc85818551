// The jobs of a server: created, shown, cancelled, kept in the state folder, and run one after another in the order in
// which they were asked for. Knows no HTTP.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/input_file.h"
#include "server/job.h"
#include "server/job_store.h"
#include "server/metrics.h"
#include "server/models.h"
#include "server/video_request.h"

namespace zoetrope::server {

struct QueueOptions {
  int64_t most_waiting = 64;
  int64_t most_finished = 1000;  // the oldest beyond them are deleted
  std::filesystem::path lora_folder;
  std::function<void(const std::string&)> log = [](const std::string&) {};
};

class JobQueue {
 public:
  // Queues again what the state folder holds unfinished, but for jobs that ended a server again and again; all three
  // must outlive this. Nothing runs before start().
  JobQueue(Models& models, JobStore& store, Metrics& metrics, QueueOptions options);
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;
  ~JobQueue();

  void start();
  // No new jobs from now on, and the one that runs is cancelled; both stay queued for the next start. Streams of events
  // end. Returns when the run has ended.
  void stop();
  bool stopping() const;

  // All of these are for any thread, and throw ApiError.
  nlohmann::json create(const VideoRequest& request);
  // What create() would say of the run, with nothing queued.
  nlohmann::json plan(const VideoRequest& request);
  nlohmann::json get(const std::string& id) const;
  struct Page {
    int64_t limit = 20;
    std::string after;  // the id before the first
    bool ascending = false;
  };
  nlohmann::json list(const Page& page) const;
  // Queues a failed one again, behind all others; it goes on from its journal.
  nlohmann::json retry(const std::string& id);
  // Cancels and forgets it, with its files.
  nlohmann::json remove(const std::string& id);
  // Of a completed one; it can be read to its end although it may be deleted meanwhile.
  std::shared_ptr<const InputFile> video(const std::string& id) const;
  // GIF of a running one.
  std::string preview(const std::string& id) const;

  // The job of next_event(), which stays valid after it is deleted.
  std::shared_ptr<const Job> watched(const std::string& id) const;
  // Waits for a change after `revision` until the deadline, and sets it. Empty at the deadline.
  struct Event {
    std::string name;  // "progress", or how it ended: "completed", "failed", "deleted", "stopping"
    std::string data;  // the video object
    bool last = false;
  };
  std::optional<Event> next_event(const Job& job, int64_t& revision,
                                  std::chrono::steady_clock::time_point deadline) const;

  void fill(Gauges& gauges) const;

 private:
  std::filesystem::path video_path(const std::string& id) const;  // of a completed one
  using JobPointer = std::shared_ptr<Job>;
  struct Checked {
    const ServedModel& model;
    pipeline::GenerateOptions options;
  };
  Checked checked(const VideoRequest& request) const;
  pipeline::GenerateOptions options_of(const JobRecord& record) const;
  void note_model_settings(JobRecord& record) const;
  // Throws Error where a job waits for a model that is none of the server's.
  void require_served_models() const;
  // Calls write(), which changes the state folder. Throws ApiError where that fails.
  void store(const std::function<void()>& write) const;
  std::string without_folder(const std::string& id, std::string text) const;
  void check_place() const;
  JobPointer find(const std::string& id) const;
  nlohmann::json shown(const Job& job) const;
  std::optional<double> seconds_until(int64_t number) const;
  void changed(Job& job);
  void delete_oldest();
  void work();
  void run(const JobPointer& job);
  void end_cancelled(const Job& job);  // of one that was deleted, or that the server does not see to its end
  bool save_until_kept(const Job& job, const JobRecord& record);
  Video run_model(const JobPointer& job);
  Video run_model(const JobPointer& job, const pipeline::GenerateOptions& options, bool counts /* as a start */);
  Callbacks callbacks_of(const JobPointer& job);

  Models& models_;
  JobStore& store_;
  Metrics& metrics_;
  const QueueOptions options_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changes_;
  std::map<std::string, JobPointer> jobs_;
  std::map<int64_t, JobPointer> by_number_;
  int64_t next_number_ = 1;
  int64_t being_added_ = 0;  // places of the queue that requests hold which are not in it yet
  std::atomic<bool> stopping_ = false;
  std::thread worker_;
};

}  // namespace zoetrope::server
