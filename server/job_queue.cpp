#include "server/job_queue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/index_range.h"
#include "base/json.h"
#include "base/print.h"
#include "base/unfinished_files.h"
#include "base/words.h"
#include "server/api_error.h"

namespace zoetrope::server {
namespace {

using nlohmann::json;
using pipeline::Forecast;
using pipeline::GenerateOptions;
using SteadyClock = std::chrono::steady_clock;

constexpr int64_t kMostStarts = 3;
constexpr int kLeastRetry = 1, kMostRetry = 3600, kUnknownRetry = 10;  // seconds

ApiError not_found(const std::string& id) {
  return {404, "not_found", fmt::format("there is no video '{}'", printable(id)), "id"};
}

ApiError shutting_down() {
  ApiError error(503, "shutting_down", "the server is shutting down; ask again when it has started");
  error.fields["Retry-After"] = fmt::to_string(kUnknownRetry);
  return error;
}

void replace_all(std::string& text, const std::string& what) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) text.erase(at, what.size());
}

json forecast_json(const ServedModel& model, const GenerateOptions& options, const Forecast& forecast) {
  return {{"object", "video.plan"},
          {"model", model.name},
          {"size", fmt::format("{}x{}", forecast.width, forecast.height)},
          {"num_frames", forecast.num_frames},
          {"fps", options.fps},
          {"num_inference_steps", pipeline::steps_of(options)},
          {"predicted_seconds", forecast.seconds ? json(*forecast.seconds) : json()},
          {"predicted_memory_bytes", forecast.memory.count()},
          {"streams_weights", forecast.streams},
          {"layout", forecast.layout},
          {"fits", forecast.refusal.empty()},
          {"reason", forecast.refusal.empty() ? json() : json(forecast.refusal)}};
}

// The field that a message of the engine begins with: "num_frames=6: …" or "prompt: …", or a file as the store names
// it, "image.png: …" or "reference_images_2.png: …"; empty: none.
std::string field_of(const std::string& message) {
  std::string name = message.substr(0, message.find_first_of("=:"));
  if (const size_t ending = name.find('.'); ending != std::string::npos) {
    name.resize(ending);
    name.resize(name.find_last_not_of("0123456789") + 1);
    if (name.ends_with('_')) name.pop_back();
  }
  const KeyUse use = use_of_key(name);
  return use == KeyUse::kRequest || use == KeyUse::kUpload ? name : "";
}

ApiError refused_by_engine(const std::string& message) { return {400, "invalid_value", message, field_of(message)}; }

// Throws ApiError for a codec or crf that the file of a job cannot have.
void check_encoding(const GenerateOptions& options) {
  try {
    pipeline::check_output_format(options);
  } catch (const Error& error) {
    std::string text = error.what();
    if (const std::string file = options.output + ": "; text.starts_with(file)) text.erase(0, file.size());
    throw refused_by_engine(text);
  }
}

ApiError storage_failed() {
  return {500, "storage_failed", "the server cannot write to its state folder; its log says why"};
}

// Gives up its place of the queue.
class Place {
 public:
  Place(std::mutex& mutex, int64_t& count) : mutex_(mutex), count_(count) {}
  ~Place() {
    const std::lock_guard lock(mutex_);
    --count_;
  }

 private:
  std::mutex& mutex_;
  int64_t& count_;
};

}  // namespace

JobQueue::JobQueue(Models& models, JobStore& store, Metrics& metrics, QueueOptions options)
    : models_(models), store_(store), metrics_(metrics), options_(std::move(options)) {
  std::vector<std::string> notes;
  for (JobRecord& record : store_.load(notes)) {
    const auto job = std::make_shared<Job>();
    if (record.status == JobStatus::kInProgress) record.status = JobStatus::kQueued;
    const int64_t starts = store_.starts(record.id);
    if (record.status == JobStatus::kQueued && starts >= kMostStarts) {
      record.status = JobStatus::kFailed;
      record.completed_at = std::time(nullptr);
      record.error = fmt::format(
          "the server ended {} times while it made this video, so it is not begun again; the system's log may say why "
          "(memory that ran out?)",
          starts);
      store_.save(record);
      notes.push_back(fmt::format("{}: failed: {}", record.id, record.error));
    }
    job->record = std::move(record);
    jobs_[job->record.id] = by_number_[job->record.number] = job;
    next_number_ = job->record.number + 1;
  }
  for (const std::string& note : notes) options_.log(note);
  require_served_models();
  for (const auto& [number, job] : by_number_)
    if (job->record.status == JobStatus::kQueued) note_model_settings(job->record);
  delete_oldest();
}

JobQueue::~JobQueue() { stop(); }

void JobQueue::start() {
  worker_ = std::thread([this] { work(); });
}

void JobQueue::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changes_.notify_all();
    // Now, since mpirun may kill the process before the run has ended.
    if (models_.lost().empty())
      for (const auto& [number, job] : by_number_)
        if (job->record.status == JobStatus::kInProgress) store_.clear_starts(job->record.id);
  }
  if (worker_.joinable()) worker_.join();
}

// From a signal on no file can be completed, a moment before anybody calls stop().
bool JobQueue::stopping() const { return stopping_ || unfinished_files_removed(); }

JobQueue::Checked JobQueue::checked(const VideoRequest& request) const {
  const ServedModel& model = models_.find(request.model);
  GenerateOptions options = model.options;
  apply(request, options_.lora_folder, options);
  return {model, options};
}

void JobQueue::check_place() const {
  if (stopping()) throw shutting_down();
  int64_t waiting = being_added_;
  for (const auto& [number, job] : by_number_) waiting += job->record.status == JobStatus::kQueued ? 1 : 0;
  if (waiting < options_.most_waiting) return;
  ApiError full(429, "queue_full",
                fmt::format("the queue is full: {} {}; ask again when one has ended", counted(waiting, "job"),
                            waiting == 1 ? "waits" : "wait"));
  std::optional<double> seconds;
  for (const auto& [number, job] : by_number_)
    if (job->record.status == JobStatus::kInProgress) seconds = job->progress.seconds_left;
  full.fields["Retry-After"] = fmt::to_string(
      seconds ? std::clamp(static_cast<int>(std::min(*seconds, 1e6)), kLeastRetry, kMostRetry) : kUnknownRetry);
  throw full;
}

std::string JobQueue::without_folder(const std::string& id, std::string text) const {
  replace_all(text, store_.folder_of(id).string() + "/");
  if (!options_.lora_folder.empty()) replace_all(text, options_.lora_folder.string() + "/");
  return text;
}

// As options of a run, with the files where they are.
GenerateOptions JobQueue::options_of(const JobRecord& record) const {
  GenerateOptions options = models_.find(record.model).options;
  const GenerateOptions unset;
  static_cast<Request&>(options) = unset;
  options.codec = unset.codec;
  options.crf = unset.crf;
  apply_settings(record.settings, options_.lora_folder, options);
  OptionSet keys = pipeline::describe_options(options);
  for (const auto& [key, name] : record.uploads) {
    const std::string path = (store_.folder_of(record.id) / name).string();
    if (key == "reference_images") options.reference_images.push_back(path);
    else keys.set(key, path, "uploads");
  }
  options.output = store_.video_of(record.id).string();
  constexpr int64_t kPreviews = 6;
  if (!options.preview) options.preview = ceil_div(pipeline::steps_of(options), kPreviews);
  return options;
}

json JobQueue::create(const VideoRequest& request) {
  const auto job = std::make_shared<Job>();
  JobRecord& record = job->record;
  {
    const std::lock_guard lock(mutex_);
    check_place();
    ++being_added_;
  }
  const Place place(mutex_, being_added_);
  const Checked asked = checked(request);
  record.id = new_job_id();
  record.model = asked.model.name;
  record.settings = settings_to_keep(request, asked.options);
  bool saved = false;
  const auto give_up = [&] {
    if (!saved) store_.remove(record.id);
  };
  try {
    store([&] { store_.add_uploads(record, request.uploads); });
    GenerateOptions options = options_of(record);
    check_encoding(options);
    const Forecast forecast = models_.forecast(asked.model, options);
    if (!forecast.refusal.empty()) throw ApiError(422, "does_not_fit", forecast.refusal);
    record.width = forecast.width;
    record.height = forecast.height;
    record.num_frames = forecast.num_frames;
    record.fps = options.fps;
    record.created_at = std::time(nullptr);
    record.predicted_seconds = forecast.seconds;
    record.model_settings = settings_of_model(options, record.settings);
    record.predicted_bytes = forecast.memory.count();
    const std::string id = record.id;
    json answer;
    {
      const std::lock_guard lock(mutex_);
      if (stopping()) throw shutting_down();
      record.number = next_number_++;
      store([&] { store_.save(record); });
      saved = true;
      jobs_[record.id] = by_number_[record.number] = job;
      answer = shown(*job);
      changes_.notify_all();
    }
    options_.log(fmt::format("{}: queued, {}x{}, {} frames, model {}", id, forecast.width, forecast.height,
                             forecast.num_frames, asked.model.name));
    return answer;
  } catch (const ApiError&) {
    give_up();
    throw;
  } catch (const Error& error) {
    give_up();
    if (stopping()) throw shutting_down();
    throw refused_by_engine(without_folder(record.id, error.what()));
  } catch (...) {
    give_up();
    throw;
  }
}

json JobQueue::plan(const VideoRequest& request) {
  const Checked asked = checked(request);
  JobRecord record;
  record.id = new_job_id();
  record.model = asked.model.name;
  record.settings = settings_to_keep(request, asked.options);
  struct Remove {
    JobStore& store;
    const std::string& id;
    ~Remove() { store.remove(id); }
  };
  const Remove remove{store_, record.id};
  try {
    if (!request.uploads.empty()) store([&] { store_.add_uploads(record, request.uploads); });
    const GenerateOptions options = options_of(record);
    check_encoding(options);
    return forecast_json(asked.model, options, models_.forecast(asked.model, options));
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw refused_by_engine(without_folder(record.id, error.what()));
  }
}

// For the command that is shown of a video that waits. What is wrong with its settings, a LoRA file that is gone say,
// is said when it begins.
void JobQueue::note_model_settings(JobRecord& record) const {
  try {
    record.model_settings = settings_of_model(options_of(record), record.settings);
  } catch (const Error&) {
    record.model_settings.clear();
  }
}

// A wrong path in the command line is no reason to fail what waits.
void JobQueue::require_served_models() const {
  std::set<std::string> models, folders;
  for (const auto& [number, job] : by_number_) {
    const JobRecord& record = job->record;
    const auto serves = [&](const ServedModel& model) { return model.name == record.model; };
    if (record.status != JobStatus::kQueued || std::ranges::any_of(models_.all(), serves)) continue;
    models.insert(record.model);
    folders.insert(store_.folder_of(record.id).string());
  }
  if (models.empty()) return;
  fail("state: {} for models that are not served: {}; serve them too, or delete {}",
       folders.size() == 1 ? "a video waits" : fmt::format("{} videos wait", folders.size()), fmt::join(models, ", "),
       fmt::join(folders, ", "));
}

// A state folder that cannot be written to is no fault of the request. What is wrong with it is for the log.
void JobQueue::store(const std::function<void()>& write) const {
  try {
    write();
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    if (stopping()) throw shutting_down();
    options_.log(error.what());
    throw storage_failed();
  }
}

JobQueue::JobPointer JobQueue::find(const std::string& id) const {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) throw not_found(id);
  return found->second;
}

// Until the job of this number begins; unset where that of one before it is not predicted.
std::optional<double> JobQueue::seconds_until(int64_t number) const {
  double seconds = 0;
  for (const auto& [each, job] : by_number_) {
    if (each >= number) break;
    std::optional<double> takes = 0;
    if (job->record.status == JobStatus::kQueued) takes = job->record.predicted_seconds;
    if (job->record.status == JobStatus::kInProgress)
      takes = job->progress.seconds_left ? job->progress.seconds_left : job->record.predicted_seconds;
    if (!takes) return std::nullopt;
    seconds += *takes;
  }
  return seconds;
}

json JobQueue::shown(const Job& job) const {
  int64_t position = 0;
  if (job.record.status == JobStatus::kQueued) {
    for (const auto& [number, other] : by_number_) {
      if (number >= job.record.number) break;
      if (other->record.status <= JobStatus::kInProgress) ++position;
    }
  }
  return video_object(job, position, seconds_until(job.record.number));
}

json JobQueue::get(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  return shown(*find(id));
}

json JobQueue::list(const Page& page) const {
  const std::lock_guard lock(mutex_);
  std::vector<JobPointer> jobs;
  for (const auto& [number, job] : by_number_) jobs.push_back(job);
  if (!page.ascending) std::reverse(jobs.begin(), jobs.end());
  size_t begin = 0;
  if (!page.after.empty()) {
    const auto after = jobs_.find(page.after);
    if (after == jobs_.end())
      throw ApiError(400, "invalid_value", fmt::format("after={}: there is no such video", printable(page.after)),
                     "after");
    begin = static_cast<size_t>(std::find(jobs.begin(), jobs.end(), after->second) - jobs.begin()) + 1;
  }
  const size_t end = std::min(jobs.size(), begin + static_cast<size_t>(page.limit));
  json data = json::array();
  for (size_t i = begin; i < end; ++i) data.push_back(shown(*jobs[i]));
  json answer = {{"object", "list"}, {"has_more", end < jobs.size()}};
  answer["first_id"] = data.empty() ? json() : data.front()["id"];
  answer["last_id"] = data.empty() ? json() : data.back()["id"];
  answer["data"] = std::move(data);
  return answer;
}

// Under a new number: with its old one it would run before those that wait, and be the first of the finished ones to be
// deleted.
json JobQueue::retry(const std::string& id) {
  json answer;
  {
    const std::lock_guard lock(mutex_);
    const JobPointer job = find(id);
    JobRecord& record = job->record;
    if (record.status != JobStatus::kFailed)
      throw ApiError(
          409, "video_not_failed",
          fmt::format("video '{}' is {}; only one that failed can be tried again", id, status_word(record.status)),
          "id");
    models_.find(record.model);  // a server does not start while one waits for a model that is not served
    check_place();
    JobRecord again = queued_again(record, next_number_++);
    note_model_settings(again);
    store_.clear_starts(id);
    store([&] { store_.save(again); });
    by_number_.erase(record.number);
    record = std::move(again);
    by_number_[record.number] = job;
    job->progress = {};
    changed(*job);
    answer = shown(*job);
  }
  options_.log(fmt::format("{}: queued again", id));
  return answer;
}

json JobQueue::remove(const std::string& id) {
  bool running = false;
  {
    const std::lock_guard lock(mutex_);
    const JobPointer job = find(id);
    running = job->record.status == JobStatus::kInProgress;
    if (!store_.forget(id)) {
      options_.log(fmt::format("{}: cannot be deleted from {}", id, store_.folder_of(id).string()));
      throw storage_failed();
    }
    job->deleted = true;
    job->cancelled = true;
    jobs_.erase(id);
    by_number_.erase(job->record.number);
    changed(*job);
  }
  // Of one that runs the files are in use: the thread that runs it removes them.
  if (!running) store_.remove(id);
  options_.log(fmt::format("{}: deleted{}", id, running ? ", and cancelled" : ""));
  return {{"id", id}, {"object", "video.deleted"}, {"deleted", true}};
}

std::filesystem::path JobQueue::video_path(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const JobRecord& record = find(id)->record;
  if (record.status == JobStatus::kFailed)
    throw ApiError(404, "video_failed", fmt::format("video '{}' failed: {}", id, record.error), "id");
  if (record.status != JobStatus::kCompleted)
    throw ApiError(409, "video_not_ready",
                   fmt::format("video '{}' is {}; ask again when it is completed", id, status_word(record.status)),
                   "id");
  return store_.video_of(id);
}

std::shared_ptr<const InputFile> JobQueue::video(const std::string& id) const {
  const std::filesystem::path path = video_path(id);
  try {
    return std::make_shared<const InputFile>(path, InputFile::Kind::kCache);
  } catch (const Error& error) {
    options_.log(error.what());
    if (!is_there(path)) throw ApiError(404, "video_lost", fmt::format("the file of video '{}' is gone", id), "id");
    throw ApiError(503, "storage_failed", "the server cannot read from its state folder; its log says why");
  }
}

std::string JobQueue::preview(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const Job& job = *find(id);
  if (job.preview.empty())
    throw ApiError(404, "no_preview", fmt::format("there is no preview of video '{}'", id), "id");
  return job.preview;
}

std::shared_ptr<const Job> JobQueue::watched(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  return find(id);
}

std::optional<JobQueue::Event> JobQueue::next_event(const Job& job, int64_t& revision,
                                                    SteadyClock::time_point deadline) const {
  std::unique_lock lock(mutex_);
  const auto news = [&] { return job.revision != revision || stopping_; };
  if (!changes_.wait_until(lock, deadline, news)) return std::nullopt;
  revision = job.revision;
  Event event{"progress", json_text(shown(job))};
  if (job.deleted) event.name = "deleted";
  else if (job.record.status == JobStatus::kCompleted || job.record.status == JobStatus::kFailed)
    event.name = status_word(job.record.status);
  else if (stopping_) event.name = "stopping";
  event.last = event.name != "progress";
  return event;
}

void JobQueue::fill(Gauges& gauges) const {
  const std::lock_guard lock(mutex_);
  for (const JobStatus status : kJobStatuses) gauges.jobs[status_word(status)] = 0;
  for (const auto& [number, job] : by_number_) ++gauges.jobs[status_word(job->record.status)];
  gauges.queue_length = gauges.jobs[status_word(JobStatus::kQueued)];
  gauges.queue_limit = options_.most_waiting;
}

}  // namespace zoetrope::server
