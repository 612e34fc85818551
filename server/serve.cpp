#include "server/serve.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <thread>

#include "zoetrope/video.h"

#include "base/error.h"
#include "base/input_file.h"
#include "base/print.h"
#include "base/words.h"
#include "pipeline/ranks/hosts.h"
#include "server/api.h"
#include "server/http_server.h"
#include "server/job_queue.h"
#include "server/job_store.h"
#include "server/metrics.h"
#include "server/models.h"
#include "server/rank_jobs.h"

namespace zoetrope::server {
namespace {

constexpr auto kBetweenQuestions = std::chrono::milliseconds(100);
constexpr size_t kMaxTokenBytes = 4096;

std::vector<std::string> listed(const std::string& text) {
  std::vector<std::string> names;
  for (const std::string_view name : split(text, ',')) {
    if (name.empty()) continue;
    names.push_back(lower_case(std::string(name)));  // as heads of requests are compared
  }
  return names;
}

std::string token_of(const ServeOptions& options) {
  if (options.token_file.empty()) return options.token;
  if (!options.token.empty()) fail("token_file={}: leave out token, or this", options.token_file);
  std::string token = read_file(options.token_file, kMaxTokenBytes);
  token.erase(token.find_last_not_of(" \t\r\n") + 1);
  if (token.empty()) fail("token_file={}: is empty; write the token into it", options.token_file);
  return token;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

void check_names(const std::vector<ServedModel>& models) {
  if (models.empty()) fail("serve: name a checkpoint folder, or a YAML file that names one");
  for (const ServedModel& model : models) {
    const auto same = [&](const ServedModel& other) { return other.name == model.name; };
    if (std::count_if(models.begin(), models.end(), same) > 1)
      fail("serve: two models have the name '{}'; the name is that of the folder or YAML file, so rename one",
           model.name);
  }
}

// That the jobs' files can be coded as the server's settings say.
void check_format(const ServedModel& model) {
  pipeline::GenerateOptions options = model.options;
  options.output = "video.mp4";
  pipeline::check_output_format(options);
}

}  // namespace

OptionSet describe_serve_options(ServeOptions& o) {
  OptionSet set;
  set.text("host", o.host, "address to listen on; 0.0.0.0: all of this machine")
      .integer("port", o.port, {0, 65535}, "0: any free one, which is printed")
      .text("state", o.state,
            "folder of jobs, uploads and videos, with which a later start goes on; unset: a temporary one")
      .integer("queue", o.queue, {1, 100000}, "jobs that may wait; more are refused with 429")
      .integer("keep", o.keep, {1, 1000000},
               "ended jobs that are kept, failed ones too; the oldest beyond them are deleted with their files")
      .text("token", o.token, "what requests must carry as Authorization: Bearer TOKEN; unset: nothing")
      .text("token_file", o.token_file, "file with the token, which then shows in no list of processes")
      .text("allowed_hosts", o.allowed_hosts,
            "names of the server besides IP addresses and localhost, as a.example,b.example")
      .text("lora_folder", o.lora_folder, "folder of the .safetensors files that requests may name as lora")
      .integer("max_upload", o.max_upload, {1, 4096}, "MB of the body of a request")
      .integer("connections", o.connections, {2, 4096}, "open connections at most; half of them may be event streams")
      .number("request_timeout", o.request_timeout, {0.1, 3600},
              "seconds in which a request must arrive, plus one per 64 KB")
      .choice("log", o.log, {"none", "jobs", "requests"}, "what is written to standard error");
  return set;
}

void serve(const ServeOptions& options, std::vector<ServedModel> served, const std::function<bool()>& stopped,
           comm::Communicator* world, double timeout_seconds) {
  check_names(served);
  std::optional<RankJobs> ranks;
  int processes_here = 1;
  if (world != nullptr && world->size() > 1) {
    // Of the host with the most: one plan is made for all.
    processes_here = static_cast<int>(world->all_reduce_max(pipeline::processes_on_this_host(*world)));
    ranks.emplace(*world, timeout_seconds);
    if (world->rank() > 0) return Models(std::move(served), &*ranks, processes_here).follow();
  }
  const std::string token = token_of(options);
  const auto log = [&](const std::string& line) {
    if (options.log != "none") print_error("{} {}\n", utc_now_text(), printable(line));
  };
  Metrics metrics;
  Models models(std::move(served), ranks ? &*ranks : nullptr, processes_here);
  models.log = log;
  JobStore store(options.state);
  // Every job writes one: where none can be written, that is said now.
  video_file(store.folder() / "try.mp4")({16, 16, 16, {}});
  for (const ServedModel& model : models.all()) check_format(model);
  JobQueue queue(models, store, metrics, {options.queue, options.keep, options.lora_folder, log});
  Api api(queue, models, metrics, {token, listed(options.allowed_hosts), options.connections / 2});
  HttpServer::Handlers handlers;
  handlers.admit = [&](const RequestHead& head) { api.admit(head); };
  handlers.answer = [&](const httplib::Request& request, httplib::Response& response) {
    api.answer(request, response);
  };
  handlers.refused = [&] { metrics.add_refused_connection(); };
  handlers.done = [&](const RequestHead& head, int status, double seconds) {
    metrics.add_request(head.method.empty() ? "none" : head.method, status);
    if (options.log == "requests")
      log(fmt::format("{} {}: {} in {}", head.method, head.target, status, duration_text(seconds)));
  };
  constexpr size_t kMega = 1'000'000;
  HttpServer http({.host = options.host,
                   .port = static_cast<int>(options.port),
                   .connections = static_cast<size_t>(options.connections),
                   .request_timeout = options.request_timeout,
                   .most_body = static_cast<size_t>(options.max_upload) * kMega},
                  handlers);
  api.connections = [&] { return http.connections(); };
  if (token.empty() && !is_loopback(options.host))
    log(fmt::format("Note: host={} without a token: whoever reaches this machine may start jobs", options.host));
  queue.start();
  http.start();
  std::vector<std::string> names;
  for (const ServedModel& model : models.all()) names.push_back(model.name);
  const bool six = options.host.find(':') != std::string::npos;
  print("Serving {} at http://{}{}{}:{}\n", printable(fmt::format("{}", fmt::join(names, ", "))), six ? "[" : "",
        options.host, six ? "]" : "", http.port());
  print("Jobs are in {}{}\n", printable(store.folder().string()),
        options.state.empty() ? ", which goes when the server ends; state=DIR keeps them" : "");
  finish_output();
  while (!stopped() && models.lost().empty()) std::this_thread::sleep_for(kBetweenQuestions);
  log("Shutting down: no new jobs; what waits or runs is queued for the next start");
  queue.stop();
  http.stop();
  log("Ended");
  if (!models.lost().empty()) fail("{}", models.lost());
}

}  // namespace zoetrope::server
