#include "server/metrics.h"

#include <fmt/format.h>

namespace zoetrope::server {
namespace {

std::string heading(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP zoetrope_{} {}\n# TYPE zoetrope_{} {}\n", name, help, name, type);
}

template <typename Value>
std::string single(const char* name, const char* type, const char* help, Value value) {
  return heading(name, type, help) + fmt::format("zoetrope_{} {}\n", name, value);
}

}  // namespace

void Metrics::add_request(const std::string& method, int status) {
  const std::lock_guard lock(mutex_);
  ++requests_[{method, status}];
}

void Metrics::add_refused_connection() {
  const std::lock_guard lock(mutex_);
  ++refused_connections_;
}

void Metrics::add_step() {
  const std::lock_guard lock(mutex_);
  ++steps_;
}

void Metrics::add_run(const std::string& status, double denoise_seconds, double decode_seconds) {
  const std::lock_guard lock(mutex_);
  ++runs_[status];
  denoise_seconds_ += denoise_seconds;
  decode_seconds_ += decode_seconds;
}

std::string Metrics::text(const Gauges& gauges) const {
  const std::lock_guard lock(mutex_);
  std::string text = heading("jobs", "gauge", "Jobs that the server knows, by status.");
  for (const auto& [status, count] : gauges.jobs)
    text += fmt::format("zoetrope_jobs{{status=\"{}\"}} {}\n", status, count);
  text += single("queue_length", "gauge", "Jobs that wait.", gauges.queue_length);
  text += single("queue_limit", "gauge", "Jobs that may wait.", gauges.queue_limit);
  text += heading("runs_total", "counter", "Runs that ended, by how.");
  for (const auto& [status, count] : runs_)
    text += fmt::format("zoetrope_runs_total{{status=\"{}\"}} {}\n", status, count);
  text += single("steps_total", "counter", "Denoising steps that were computed.", steps_);
  text += single("denoise_seconds_total", "counter", "Seconds that finished runs denoised for.", denoise_seconds_);
  text += single("decode_seconds_total", "counter", "Seconds that finished runs decoded for.", decode_seconds_);
  text += single("resident_bytes", "gauge", "Memory that the process has resident.", gauges.resident_bytes);
  text += single("connections", "gauge", "Open connections.", gauges.connections);
  text += single("event_streams", "gauge", "Open streams of events.", gauges.event_streams);
  text += single("refused_connections_total", "counter", "Connections beyond the limit.", refused_connections_);
  text += heading("http_requests_total", "counter", "Requests, by method and status code.");
  for (const auto& [key, count] : requests_)
    text += fmt::format("zoetrope_http_requests_total{{method=\"{}\",code=\"{}\"}} {}\n", key.first, key.second, count);
  return text;
}

}  // namespace zoetrope::server
