#include "server/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/json.h"
#include "base/words.h"
#include "pipeline/settings/run_identity.h"
#include "server/video_request.h"

namespace zoetrope::server {
namespace {

using nlohmann::json;

constexpr std::string_view kIdStart = "video_";
constexpr size_t kIdDigits = 32;
constexpr int64_t kFormat = 1;

template <typename T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

double share(int64_t done, int64_t total) {
  return total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0;
}

std::string seconds_text(const JobRecord& job) {
  const double seconds = static_cast<double>(job.num_frames) / static_cast<double>(std::max<int64_t>(1, job.fps));
  return fmt::format("{:.4g}", seconds);
}

}  // namespace

const char* status_word(JobStatus status) {
  switch (status) {
    case JobStatus::kQueued:
      return "queued";
    case JobStatus::kInProgress:
      return "in_progress";
    case JobStatus::kCompleted:
      return "completed";
    case JobStatus::kFailed:
      break;
  }
  return "failed";
}

int Progress::percent() const {
  const double denoised = std::min(1.0, share(step, steps) + (steps > 0 ? share(layer, layers) / double(steps) : 0));
  return std::min(99, static_cast<int>(90 * denoised + 10 * share(frame, frames)));
}

std::string job_text(const JobRecord& job) {
  json uploads = json::array();
  for (const auto& [key, file] : job.uploads) uploads.push_back({{"key", key}, {"file", file}});
  const json document = {{"format", kFormat},
                         {"id", job.id},
                         {"number", job.number},
                         {"status", status_word(job.status)},
                         {"model", job.model},
                         {"settings", job.settings},
                         {"model_settings", job.model_settings},
                         {"uploads", uploads},
                         {"width", job.width},
                         {"height", job.height},
                         {"num_frames", job.num_frames},
                         {"fps", job.fps},
                         {"created_at", job.created_at},
                         {"completed_at", or_null(job.completed_at)},
                         {"predicted_seconds", or_null(job.predicted_seconds)},
                         {"predicted_bytes", job.predicted_bytes},
                         {"seed", or_null(job.seed)},
                         {"seconds_taken", or_null(job.seconds_taken)},
                         {"warnings", job.warnings},
                         {"error", job.error}};
  return json_text(document, 1) + "\n";
}

JobRecord parse_job(std::string_view text, const std::string& where) {
  const JsonObject file = JsonObject::parse(text, where);
  file.get_between<int64_t>("format", kFormat, kFormat);
  JobRecord job;
  job.id = file.get<std::string>("id");
  if (!is_job_id(job.id)) fail("{}: id: '{}' is not a name of a job", where, job.id);
  job.number = file.get_between<int64_t>("number", 1, INT64_MAX);
  const std::string status = file.get_one_of("status", {"queued", "in_progress", "completed", "failed"});
  for (const JobStatus each : kJobStatuses)
    if (status == status_word(each)) job.status = each;
  job.model = file.get<std::string>("model");
  const JsonObject settings = file.object("settings");
  for (const std::string& key : settings.keys()) {
    if (use_of_key(key) != KeyUse::kRequest) fail("{}: settings.{}: is not a setting of a request", where, key);
    job.settings[key] = settings.get<std::string>(key);
  }
  if (const auto of_model = file.find_object("model_settings"))  // older files lack it
    job.model_settings = pipeline::texts(*of_model);
  for (const JsonObject& upload : file.objects("uploads")) {
    const std::string key = upload.get<std::string>("key"), name = upload.get<std::string>("file");
    if (use_of_key(key) != KeyUse::kUpload) fail("{}: uploads: '{}' is not a file of a request", where, key);
    if (name.empty() || name.find('/') != std::string::npos || name.starts_with("."))
      fail("{}: uploads: '{}' is not a name of a file in the job's folder", where, name);
    job.uploads.emplace_back(key, name);
  }
  constexpr int64_t kMostPixels = 16384, kMostFrames = int64_t{1} << 32;
  job.width = file.get_between<int64_t>("width", 1, kMostPixels);
  job.height = file.get_between<int64_t>("height", 1, kMostPixels);
  job.num_frames = file.get_between<int64_t>("num_frames", 1, kMostFrames);
  job.fps = file.get_between<int64_t>("fps", 1, 240);
  job.created_at = file.get<int64_t>("created_at");
  job.completed_at = file.find<int64_t>("completed_at");
  job.predicted_seconds = file.find<double>("predicted_seconds");
  job.predicted_bytes = file.get_between<int64_t>("predicted_bytes", 0, INT64_MAX);
  job.seed = file.find<int64_t>("seed");
  job.seconds_taken = file.find<double>("seconds_taken");
  job.warnings = file.get<std::vector<std::string>>("warnings", {});  // older files lack it
  job.error = file.get<std::string>("error");
  return job;
}

JobRecord queued_again(JobRecord failed, int64_t number) {
  JobRecord job = std::move(failed);
  job.number = number;
  job.status = JobStatus::kQueued;
  job.model_settings.clear();
  job.completed_at.reset();
  job.seconds_taken.reset();
  job.warnings.clear();
  job.error.clear();
  return job;
}

std::string new_job_id() {
  std::random_device random;
  std::string id(kIdStart);
  for (size_t i = 0; i < kIdDigits; i += 8) id += fmt::format("{:08x}", random());
  return id;
}

bool is_job_id(std::string_view text) {
  return text.size() == kIdStart.size() + kIdDigits && text.starts_with(kIdStart) &&
         text.find_first_not_of("0123456789abcdef", kIdStart.size()) == std::string_view::npos;
}

namespace {

// "zoetrope generate model=… prompt=…", which makes the same video.
std::string repeat_command(const JobRecord& job) {
  std::string text = fmt::format("zoetrope generate {}", shell_word(fmt::format("model={}", job.model)));
  std::map<std::string, std::string> settings = job.settings;
  settings.insert(job.model_settings.begin(), job.model_settings.end());
  if (job.seed) settings["seed"] = fmt::to_string(*job.seed);
  std::string references;
  for (const auto& [key, file] : job.uploads) {
    if (key == "reference_images") references += fmt::format("{}{}", references.empty() ? "" : ",", file);
    else settings[key] = file;
  }
  if (!references.empty()) settings["reference_images"] = references;
  for (const auto& [key, value] : settings) {
    const bool prompt = key == "prompt" || key == "negative_prompt";
    // The program reads @FILE from a file.
    const char* literal = prompt && value.starts_with('@') ? "@" : "";
    text += fmt::format(" {}", shell_word(fmt::format("{}={}{}", key, literal, value)));
  }
  return text + fmt::format(" output={}.mp4", job.id);
}

}  // namespace

json video_object(const Job& job, int64_t position, std::optional<double> wait_seconds) {
  const JobRecord& record = job.record;
  const Progress& progress = job.progress;
  json uploads = json::array();
  for (const auto& [key, file] : record.uploads) uploads.push_back(key);
  const bool runs = record.status == JobStatus::kInProgress, waits = record.status == JobStatus::kQueued;
  const auto setting = [&](const char* key) {
    const auto found = record.settings.find(key);
    return found == record.settings.end() ? std::string() : found->second;
  };
  json video = {{"id", record.id},
                {"number", record.number},
                {"object", "video"},
                {"model", record.model},
                {"status", status_word(record.status)},
                {"progress", record.status == JobStatus::kCompleted ? 100
                             : runs                                 ? progress.percent()
                                                                    : 0},
                {"created_at", record.created_at},
                {"completed_at", or_null(record.completed_at)},
                {"expires_at", json()},
                {"size", fmt::format("{}x{}", record.width, record.height)},
                {"seconds", seconds_text(record)},
                {"quality", "standard"},
                {"prompt", setting("prompt")},
                {"remixed_from_video_id", json()},
                {"error", json()},
                {"num_frames", record.num_frames},
                {"fps", record.fps},
                {"seed", or_null(record.seed)},
                {"settings", record.settings},
                {"uploads", uploads},
                {"command", repeat_command(record)},
                {"predicted_seconds", or_null(record.predicted_seconds)},
                {"predicted_memory_bytes", record.predicted_bytes},
                {"seconds_taken", or_null(record.seconds_taken)},
                {"warnings", record.warnings}};
  if (record.status == JobStatus::kFailed) video["error"] = {{"code", "generation_failed"}, {"message", record.error}};
  if (waits) {
    video["queue_position"] = position;
    video["wait_seconds"] = or_null(wait_seconds);
  }
  if (runs) {
    video["run"] = {
        {"phase", progress.phase},   {"step", progress.step},         {"steps", progress.steps},
        {"layer", progress.layer},   {"layers", progress.layers},     {"frame", progress.frame},
        {"frames", progress.frames}, {"previews", progress.previews}, {"seconds_left", or_null(progress.seconds_left)}};
  }
  return video;
}

}  // namespace zoetrope::server
