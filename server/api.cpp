#include "server/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "zoetrope/version.h"

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "base/options.h"
#include "base/print.h"
#include "base/words.h"
#include "server/page.h"
#include "trace/resident.h"

namespace zoetrope::server {
namespace {

using httplib::Request;
using httplib::Response;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr auto kBetweenEvents = std::chrono::milliseconds(100);
constexpr auto kUntilCheck = std::chrono::milliseconds(500);  // whether the client is still there
constexpr auto kUntilComment = std::chrono::seconds(15);      // so that proxies see that the stream lives
constexpr size_t kFilePart = 65536;
constexpr int64_t kMostPerPage = 100;

void send_json(Response& response, const json& body) {
  response.set_header("Cache-Control", "no-store");
  response.set_header("X-Content-Type-Options", "nosniff");
  response.set_content(json_text(body), "application/json");
}

std::vector<std::string> parts_of(std::string_view path) {
  const std::vector<std::string_view> parts = split(path, '/');
  return {parts.begin() + 1, parts.end()};  // nothing is before the first slash
}

void allow(const Request& request, const std::vector<std::string>& methods) {
  for (const std::string& method : methods)
    if (request.method == method || (request.method == "HEAD" && method == "GET")) return;
  ApiError error(405, "method_not_allowed",
                 fmt::format("{}: takes {}", printable(request.path), fmt::join(methods, " and ")));
  error.fields["Allow"] = fmt::format("{}", fmt::join(methods, ", "));
  throw error;
}

void take_parameters(const Request& request, const std::set<std::string>& known) {
  for (const auto& [name, value] : request.params) {
    if (!known.contains(name))
      throw ApiError(400, "unknown_parameter", fmt::format("there is no parameter '{}' here", printable(name)), name);
    if (request.get_param_value_count(name) > 1)
      throw ApiError(400, "invalid_value", fmt::format("{}: is given twice", name), name);
  }
}

// In small letters, without parameters.
std::string media_type(const Request& request) {
  std::string type = request.get_header_value("Content-Type");
  type.erase(std::min(type.find_first_of("; \t"), type.size()));
  std::ranges::transform(type, type.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return type;
}

VideoRequest video_request(const Request& request) {
  if (request.is_multipart_form_data()) {
    std::vector<Field> parts;
    for (const auto& [name, part] : request.files)
      parts.push_back({.name = name, .value = part.content, .file = !part.filename.empty()});
    return parse_video_request(fields_of_form(std::move(parts)));
  }
  if (media_type(request) == "application/json") return parse_video_request(fields_of_json(request.body));
  throw ApiError(415, "unsupported_content_type",
                 "send the request as application/json, or as multipart/form-data where there are files");
}

}  // namespace

std::string event_text(const std::string& name, const std::string& data) {
  std::string text = fmt::format("event: {}\n", name);
  for (const std::string_view line : split(data, '\n')) text += fmt::format("data: {}\n", line);
  return text + "\n";
}

void Api::admit(const RequestHead& head) const {
  check_origin(head, options_.allowed_hosts);
  const std::string path = head.target.substr(0, head.target.find('?'));
  if (options_.token.empty() || path == "/health" || page_file(path) != nullptr) return;
  check_token(head, options_.token);
}

void Api::answer(const Request& request, Response& response) {
  const std::vector<std::string> parts = parts_of(request.path);
  const auto is = [&](const char* path) { return request.path == path; };
  if (const PageFile* file = page_file(request.path)) {
    allow(request, {"GET"});
    for (const auto& [name, value] : page_fields()) response.set_header(name, value);
    response.set_content(file->text, std::char_traits<char>::length(file->text), file->type);
  } else if (is("/health")) {
    allow(request, {"GET"});
    send_health(response);
  } else if (is("/metrics")) {
    allow(request, {"GET"});
    send_metrics(response);
  } else if (is("/v1/models") || (parts.size() == 3 && parts[0] == "v1" && parts[1] == "models")) {
    allow(request, {"GET"});
    send_models(parts.size() == 3 ? parts[2] : "", response);
  } else if (is("/v1/videos")) {
    allow(request, {"GET", "POST"});
    if (request.method != "POST") return send_list(request, response);
    const VideoRequest asked = video_request(request);
    take_parameters(request, {});
    send_json(response, queue_.create(asked));
  } else if (is("/v1/videos/plan")) {
    allow(request, {"POST"});
    send_json(response, queue_.plan(video_request(request)));
  } else if ((parts.size() == 3 || (parts.size() == 4 && !parts[3].empty())) && parts[0] == "v1" &&
             parts[1] == "videos") {
    answer_video(parts[2], parts.size() == 4 ? parts[3] : "", request, response);
  } else {
    throw ApiError(404, "not_found", fmt::format("there is nothing under {}", printable(request.path)));
  }
}

void Api::answer_video(const std::string& id, const std::string& part, const Request& request, Response& response) {
  if (part.empty()) {
    allow(request, {"GET", "DELETE"});
    return send_json(response, request.method == "DELETE" ? queue_.remove(id) : queue_.get(id));
  }
  if (part == "retry") {
    allow(request, {"POST"});
    take_parameters(request, {});
    if (!request.files.empty() || (!request.body.empty() && !fields_of_json(request.body).empty()))
      throw ApiError(400, "unknown_parameter", "a video is tried again with the settings that it has: send no fields");
    return send_json(response, queue_.retry(id));
  }
  if (part != "content" && part != "events" && part != "preview")
    throw ApiError(404, "not_found", fmt::format("there is nothing under {}", printable(request.path)));
  allow(request, {"GET"});
  if (part == "content") {
    send_video(id, request, response);
  } else if (part == "events") {
    send_events(id, response);
  } else {
    response.set_header("Cache-Control", "no-store");
    response.set_content(queue_.preview(id), "image/gif");
  }
}

void Api::send_health(Response& response) const {
  Gauges gauges;
  queue_.fill(gauges);
  send_json(response, {{"status", queue_.stopping() ? "stopping" : "ok"},
                       {"version", version()},
                       {"jobs", gauges.jobs},
                       {"queue_limit", gauges.queue_limit}});
  if (queue_.stopping()) response.status = 503;
}

void Api::send_models(const std::string& name, Response& response) const {
  const auto values = [](const pipeline::GenerateOptions& o) -> json {
    return {{"size", fmt::format("{}x{}", o.width, o.height)},
            {"max_area", o.max_area ? json(*o.max_area) : json()},
            {"num_frames", o.num_frames},
            {"fps", o.fps},
            {"num_inference_steps", pipeline::steps_of(o)},
            {"guidance_scale", o.guidance_scale},
            {"negative_prompt", o.negative_prompt}};
  };
  const auto object = [&](const ServedModel& model) -> json {
    return {{"id", model.name},
            {"object", "model"},
            {"created", 0},
            {"owned_by", "zoetrope"},
            {"defaults", values(model.options)},
            {"program_defaults", values({})}};
  };
  if (!name.empty()) return send_json(response, object(models_.find(name)));
  json data = json::array();
  for (const ServedModel& model : models_.all()) data.push_back(object(model));
  send_json(response, {{"object", "list"}, {"data", data}});
}

void Api::send_list(const Request& request, Response& response) const {
  take_parameters(request, {"limit", "after", "order"});
  JobQueue::Page page;
  if (request.has_param("limit")) {
    const std::string limit = request.get_param_value("limit");
    try {
      page.limit = parse_integer(limit, {1, kMostPerPage});
    } catch (const Error& error) {
      throw ApiError(400, "invalid_value", fmt::format("limit={}: {}", printable(limit), error.what()), "limit");
    }
  }
  page.after = request.get_param_value("after");
  const std::string order = request.has_param("order") ? request.get_param_value("order") : "desc";
  if (order != "asc" && order != "desc")
    throw ApiError(400, "invalid_value", fmt::format("order={}: must be asc or desc", printable(order)), "order");
  page.ascending = order == "asc";
  send_json(response, queue_.list(page));
}

void Api::send_metrics(Response& response) const {
  Gauges gauges;
  queue_.fill(gauges);
  gauges.resident_bytes = trace::resident_bytes();
  gauges.connections = connections();
  gauges.event_streams = event_streams_;
  response.set_content(metrics_.text(gauges), "text/plain; version=0.0.4; charset=utf-8");
}

void Api::send_video(const std::string& id, const Request& request, Response& response) const {
  take_parameters(request, {"variant"});
  const std::string variant = request.has_param("variant") ? request.get_param_value("variant") : "video";
  if (variant != "video")
    throw ApiError(400, "invalid_value", fmt::format("variant={}: there is the video only", printable(variant)),
                   "variant");
  const std::shared_ptr<const InputFile> file = queue_.video(id);
  const auto bytes = static_cast<size_t>(file->bytes());
  const std::string tag = fmt::format("\"{}\"", id);
  const bool other_version = request.has_header("If-Range") && request.get_header_value("If-Range") != tag;
  const bool ranged = request.method == "GET" && request.has_header(kRangeField) && !other_version;
  const ByteRange range = ranged ? parse_range(request.get_header_value(kRangeField), bytes) : ByteRange{0, bytes};
  response.status = range.begin > 0 || range.end < bytes ? 206 : 200;
  response.set_header("Accept-Ranges", "bytes");
  response.set_header("ETag", tag);
  response.set_header("Content-Disposition", fmt::format("inline; filename=\"{}.mp4\"", id));
  if (response.status == 206)
    response.set_header("Content-Range", fmt::format("bytes {}-{}/{}", range.begin, range.end - 1, bytes));
  response.set_content_provider(range.end - range.begin, "video/mp4",
                                [file, begin = range.begin](size_t offset, size_t length, auto& sink) {
                                  std::string part(std::min(length, kFilePart), '\0');
                                  try {
                                    file->read(begin + offset, part.data(), part.size());
                                  } catch (const Error&) {
                                    return false;  // cut off: the client sees that less came than was said
                                  }
                                  return sink.write(part.data(), part.size());
                                });
}

void Api::send_events(const std::string& id, Response& response) {
  const std::shared_ptr<const Job> job = queue_.watched(id);
  if (event_streams_.fetch_add(1) >= options_.most_event_streams) {
    --event_streams_;
    ApiError error(503, "too_many_streams",
                   fmt::format("there are {} streams of events already", event_streams_.load()));
    error.fields.emplace("Retry-After", "1");
    throw error;
  }
  struct State {
    int64_t revision = -1;
    Clock::time_point sent = Clock::now() - kBetweenEvents;
    bool last = false;
  };
  const auto state = std::make_shared<State>();
  response.set_header("Cache-Control", "no-store");
  response.set_chunked_content_provider(
      "text/event-stream",
      [this, job, state](size_t, httplib::DataSink& sink) {
        if (state->last) {
          sink.done();
          return true;
        }
        if (!sink.is_writable()) return false;
        std::this_thread::sleep_until(state->sent + kBetweenEvents);
        const std::optional<JobQueue::Event> event =
            queue_.next_event(*job, state->revision, Clock::now() + kUntilCheck);
        if (!event && Clock::now() - state->sent < kUntilComment) return true;
        state->sent = Clock::now();
        state->last = event && event->last;
        const std::string text = event ? event_text(event->name, event->data) : ": nothing new\n\n";
        return sink.write(text.data(), text.size());
      },
      [this](bool) { --event_streams_; });
}

}  // namespace zoetrope::server
