// What is under which path, and how it is written: OpenAI's Videos API, and what is ours next to it (docs/server.md).
// Jobs are job_queue.h, connections http_server.h.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "server/http_server.h"
#include "server/job_queue.h"

namespace zoetrope::server {

struct ApiOptions {
  std::string token;  // empty: none is wanted
  std::vector<std::string> allowed_hosts;
  int64_t most_event_streams = 32;
};

class Api {
 public:
  // All must outlive this.
  Api(JobQueue& queue, const Models& models, const Metrics& metrics, ApiOptions options)
      : queue_(queue), models_(models), metrics_(metrics), options_(std::move(options)) {}

  // Throws ApiError for requests of foreign pages and those without the token.
  void admit(const RequestHead& head) const;
  // Throws ApiError.
  void answer(const httplib::Request& request, httplib::Response& response);

  // Connections that are open, for the metrics.
  std::function<int64_t()> connections = [] { return int64_t{0}; };

 private:
  void answer_video(const std::string& id, const std::string& part, const httplib::Request& request,
                    httplib::Response& response);
  void send_health(httplib::Response& response) const;
  void send_models(const std::string& name, httplib::Response& response) const;
  void send_list(const httplib::Request& request, httplib::Response& response) const;
  void send_metrics(httplib::Response& response) const;
  void send_video(const std::string& id, const httplib::Request& request, httplib::Response& response) const;
  void send_events(const std::string& id, httplib::Response& response);

  JobQueue& queue_;
  const Models& models_;
  const Metrics& metrics_;
  const ApiOptions options_;
  std::atomic<int64_t> event_streams_ = 0;
};

// An event of a stream: "event: progress\ndata: {…}\n\n".
std::string event_text(const std::string& name, const std::string& data);

}  // namespace zoetrope::server
