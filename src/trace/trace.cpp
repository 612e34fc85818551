#include "trace/trace.h"

#include <cstdio>

#include "base/error.h"

namespace zoetrope::trace {

Trace::Trace() : origin_(Clock::now()) {}

void Trace::record(std::string name, int rank, const char* lane, Clock::time_point begin, Clock::time_point end) {
  const auto ns = [](Clock::duration d) { return std::chrono::duration_cast<std::chrono::nanoseconds>(d).count(); };
  const std::lock_guard lock(mutex_);
  events_.push_back({std::move(name), rank, lane, ns(begin - origin_), ns(end - begin)});
}

size_t Trace::size() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

namespace {

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

void Trace::write(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  const std::filesystem::path part = path.string() + ".part";
  std::FILE* file = std::fopen(part.c_str(), "w");
  if (file == nullptr)
    fail("{}: the trace cannot be written there; name a folder that exists and is writable", path.string());
  fmt::print(file, "{{\"traceEvents\":[\n");
  bool first = true;
  for (const Event& event : events_) {
    fmt::print(file, "{}{{\"ph\":\"X\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}}",
               first ? "" : ",\n", json_string(event.name), event.rank, json_string(event.lane),
               static_cast<double>(event.begin_ns) * 1e-3, static_cast<double>(event.duration_ns) * 1e-3);
    first = false;
  }
  fmt::print(file, "\n],\"displayTimeUnit\":\"ms\"}}\n");
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed) {
    std::remove(part.c_str());
    fail("{}: writing the trace failed; is there space left?", path.string());
  }
  std::filesystem::rename(part, path);
}

}  // namespace zoetrope::trace
