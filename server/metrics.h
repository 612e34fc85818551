// Counters of a server in the text format of Prometheus. For any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace zoetrope::server {

// What is read from elsewhere when it is asked for.
struct Gauges {
  std::map<std::string, int64_t> jobs;  // by status, now
  int64_t queue_length = 0, queue_limit = 0;
  int64_t resident_bytes = 0;
  int64_t connections = 0, event_streams = 0;
};

class Metrics {
 public:
  void add_request(const std::string& method, int status);
  void add_refused_connection();
  void add_step();
  // Of a run that ended as `status` says: completed, failed or cancelled.
  void add_run(const std::string& status, double denoise_seconds, double decode_seconds);

  std::string text(const Gauges& gauges) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, int64_t> requests_;
  std::map<std::string, int64_t> runs_ = {{"completed", 0}, {"failed", 0}, {"cancelled", 0}};
  int64_t refused_connections_ = 0, steps_ = 0;
  double denoise_seconds_ = 0, decode_seconds_ = 0;
};

}  // namespace zoetrope::server
