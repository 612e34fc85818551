#include "trace/trace.h"

#include "base/atomic_file.h"
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

constexpr size_t kFlushBytes = size_t{1} << 20;  // of text, between two writes

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
  AtomicFile file(path);
  std::string text = "{\"traceEvents\":[\n";
  const char* separator = "";
  for (const Event& event : events_) {
    text += fmt::format("{}{{\"ph\":\"X\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}}}", separator,
                        json_string(event.name), event.rank, json_string(event.lane),
                        static_cast<double>(event.begin_ns) * 1e-3, static_cast<double>(event.duration_ns) * 1e-3);
    separator = ",\n";
    if (text.size() < kFlushBytes) continue;
    file.write(text.data(), text.size());
    text.clear();
  }
  text += "\n],\"displayTimeUnit\":\"ms\"}\n";
  file.write(text.data(), text.size());
  file.commit();
}

}  // namespace zoetrope::trace
