#include "trace/trace.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "zoetrope/version.h"

#include "base/atomic_file.h"
#include "base/error.h"

namespace zoetrope::trace {
namespace {

constexpr size_t kFlushBytes = size_t{1} << 20;  // of text, between two writes

int64_t nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

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

// Text that is written to a file piece by piece.
class JsonEvents {
 public:
  explicit JsonEvents(AtomicFile& file) : file_(file) { text_ = "{\"traceEvents\":[\n"; }

  void add(const std::string& event) {
    text_ += separator_;
    text_ += event;
    separator_ = ",\n";
    if (text_.size() >= kFlushBytes) flush();
  }
  // Name and order of a process or thread in the viewer.
  void name(const char* what, int rank, int row, const std::string& key, const std::string& value) {
    add(fmt::format("{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"{}\":{}}}}}", what, rank, row,
                    key, value));
  }
  void end(const std::map<std::string, std::string>& other_data) {
    text_ += "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{";
    separator_ = "";
    for (const auto& [key, value] : other_data) {
      text_ += fmt::format("{}{}:{}", separator_, json_string(key), json_string(value));
      separator_ = ",";
    }
    text_ += "}}\n";
    flush();
  }

 private:
  void flush() {
    file_.write(text_.data(), text_.size());
    text_.clear();
  }

  AtomicFile& file_;
  std::string text_;
  const char* separator_ = "";
};

// Plain values and texts one after the other; both sides are the same program.
class Packer {
 public:
  void value(int64_t number) { append(&number, sizeof number); }
  void text(const std::string& string) {
    value(static_cast<int64_t>(string.size()));
    append(string.data(), string.size());
  }
  std::vector<char> take() { return std::move(bytes_); }

 private:
  void append(const void* data, size_t size) {
    const char* begin = static_cast<const char*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  std::vector<char> bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::span<const char> bytes) : bytes_(bytes) {}
  bool done() const { return bytes_.empty(); }
  int64_t value() {
    int64_t number = 0;
    const std::span<const char> raw = take(sizeof number);
    std::memcpy(&number, raw.data(), sizeof number);
    return number;
  }
  std::string text() {
    const std::span<const char> raw = take(static_cast<size_t>(value()));
    return {raw.begin(), raw.end()};
  }

 private:
  std::span<const char> take(size_t size) {
    ZT_CHECK(size <= bytes_.size(), "packed spans end {} bytes early", size - bytes_.size());
    const std::span<const char> front = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return front;
  }
  std::span<const char> bytes_;
};

}  // namespace

Trace::Trace() : origin_ns_(nanoseconds(Clock::now().time_since_epoch())) {}

void Trace::record(Event event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
}

void Trace::record(std::string name, int rank, const char* lane, Clock::time_point begin, Clock::time_point end,
                   double flops) {
  record({std::move(name), rank, lane, nanoseconds(begin.time_since_epoch()), nanoseconds(end - begin), kNoTransfer,
          flops});
}

void Trace::record_transfer(std::string name, int rank, Clock::time_point begin, Clock::time_point end, int64_t bytes,
                            std::vector<Message> messages) {
  record({std::move(name), rank, kTransferLane, nanoseconds(begin.time_since_epoch()), nanoseconds(end - begin), bytes,
          0, std::move(messages)});
}

void Trace::set_metadata(const std::string& key, std::string value) {
  const std::lock_guard lock(mutex_);
  metadata_[key] = std::move(value);
}

void Trace::set_label(int rank, std::string label) {
  const std::lock_guard lock(mutex_);
  labels_[rank] = std::move(label);
}

size_t Trace::size() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

std::vector<char> Trace::pack() const {
  const std::lock_guard lock(mutex_);
  Packer packer;
  for (const Event& event : events_) {
    packer.text(event.name);
    packer.value(event.rank);
    packer.text(event.lane);
    packer.value(event.begin_ns);
    packer.value(event.duration_ns);
    packer.value(event.bytes);
    packer.value(std::bit_cast<int64_t>(event.flops));
    packer.value(static_cast<int64_t>(event.messages.size()));
    for (const Message& message : event.messages) {
      packer.value(message.sender);
      packer.value(message.receiver);
      packer.value(std::bit_cast<int64_t>(message.sequence));
    }
  }
  return packer.take();
}

void Trace::add_packed(std::span<const char> packed, std::chrono::nanoseconds shift) {
  const std::lock_guard lock(mutex_);
  for (Unpacker unpacker(packed); !unpacker.done();) {
    Event& event = events_.emplace_back();
    event.name = unpacker.text();
    event.rank = static_cast<int>(unpacker.value());
    event.lane = unpacker.text();
    event.begin_ns = unpacker.value() + shift.count();
    event.duration_ns = unpacker.value();
    event.bytes = unpacker.value();
    event.flops = std::bit_cast<double>(unpacker.value());
    event.messages.resize(static_cast<size_t>(unpacker.value()));
    for (Message& message : event.messages) {
      message.sender = static_cast<int>(unpacker.value());
      message.receiver = static_cast<int>(unpacker.value());
      message.sequence = std::bit_cast<uint64_t>(unpacker.value());
    }
  }
}

// The row of each event. The viewer draws the spans of a row as nested calls, so a row takes a span that begins after
// its last one or is inside the last open one; transfers never nest.
// Compute comes first, the other lanes by name, further rows of a lane below its first.
std::vector<int> Trace::lay_out(const std::vector<Event>& events, Rows& rows) {
  std::vector<size_t> order(events.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [&](size_t i) {
    const Event& e = events[i];
    return std::tuple(e.rank, e.lane != kComputeLane, std::string_view(e.lane), e.begin_ns, -e.duration_ns);
  };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });

  std::vector<int> row_of(events.size());
  std::vector<std::vector<int64_t>> open;  // of the current lane, row by row: the ends of nested spans
  const Event* last = nullptr;
  int first = 0;  // row of the lane
  for (const size_t i : order) {
    const Event& event = events[i];
    std::vector<Row>& of_rank = rows[event.rank];
    if (last == nullptr || last->rank != event.rank || last->lane != event.lane) {
      open.clear();
      first = static_cast<int>(of_rank.size());
    }
    last = &event;
    const int64_t end = event.begin_ns + event.duration_ns;
    size_t at = 0;
    for (; at < open.size(); ++at) {
      while (!open[at].empty() && open[at].back() <= event.begin_ns) open[at].pop_back();
      if (open[at].empty() || (event.bytes == kNoTransfer && end <= open[at].back())) break;
    }
    if (at == open.size()) {
      open.emplace_back();
      const std::string suffix = at == 0 ? "" : fmt::format(" {}", at + 1);
      of_rank.push_back({first + static_cast<int>(at), event.lane + suffix});
    }
    open[at].push_back(end);
    row_of[i] = first + static_cast<int>(at);
  }
  return row_of;
}

// Of the messages whose two ends were recorded.
std::vector<Trace::Arrow> Trace::arrows(const std::vector<Event>& events) {
  const auto key = [](const Message& m) { return std::tuple(m.sender, m.receiver, m.sequence); };
  std::map<std::tuple<int, int, uint64_t>, size_t> senders;
  for (size_t i = 0; i < events.size(); ++i) {
    for (const Message& message : events[i].messages)
      if (message.sender == events[i].rank) senders.emplace(key(message), i);
  }
  std::vector<Arrow> arrows;
  for (size_t i = 0; i < events.size(); ++i) {
    for (const Message& message : events[i].messages) {
      if (message.receiver != events[i].rank) continue;
      if (const auto sender = senders.find(key(message)); sender != senders.end())
        arrows.push_back({sender->second, i});
    }
  }
  return arrows;
}

void Trace::write(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  Rows rows;
  const std::vector<int> row_of = lay_out(events_, rows);
  int64_t origin = origin_ns_;
  for (const Event& event : events_) origin = std::min(origin, event.begin_ns);

  AtomicFile file(path);
  JsonEvents json(file);
  for (const auto& [rank, of_rank] : rows) {
    json.name("process_name", rank, 0, "name", json_string(fmt::format("rank {}", rank)));
    json.name("process_sort_index", rank, 0, "sort_index", fmt::to_string(rank));
    if (const auto label = labels_.find(rank); label != labels_.end())
      json.name("process_labels", rank, 0, "labels", json_string(label->second));
    for (const Row& row : of_rank) {
      json.name("thread_name", rank, row.number, "name", json_string(row.name));
      json.name("thread_sort_index", rank, row.number, "sort_index", fmt::to_string(row.number));
    }
  }
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& event = events_[i];
    std::string args;
    if (event.bytes != kNoTransfer) args = fmt::format(",\"args\":{{\"bytes\":{}}}", event.bytes);
    if (event.flops > 0) {
      args = fmt::format(",\"args\":{{\"gflop\":{:.6g},\"gflop_per_s\":{:.4g}}}", event.flops * 1e-9,
                         event.flops / static_cast<double>(std::max<int64_t>(1, event.duration_ns)));
    }
    json.add(fmt::format("{{\"ph\":\"X\",\"name\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}{}}}",
                         json_string(event.name), event.rank, row_of[i],
                         static_cast<double>(event.begin_ns - origin) * 1e-3,
                         static_cast<double>(event.duration_ns) * 1e-3, args));
  }
  // An arrow is tied to what is drawn on its row at its moment, the last one of a transfer being still inside.
  const auto microseconds = [&](int64_t ns) { return static_cast<double>(ns - origin) * 1e-3; };
  size_t number = 0;
  for (const Arrow& arrow : arrows(events_)) {
    const Event &from = events_[arrow.from], &to = events_[arrow.to];
    const int64_t end = to.begin_ns + std::max<int64_t>(0, to.duration_ns - 1);
    constexpr const char* kEnd =
        "{{\"ph\":\"{}\",\"cat\":\"message\",\"name\":\"message\",\"id\":{},\"pid\":{},\"tid\":{},\"ts\":{:.3f}{}}}";
    json.add(fmt::format(kEnd, "s", number, from.rank, row_of[arrow.from], microseconds(from.begin_ns), ""));
    json.add(fmt::format(kEnd, "f", number, to.rank, row_of[arrow.to], microseconds(end), ",\"bp\":\"e\""));
    ++number;
  }
  std::map<std::string, std::string> other_data = metadata_;
  other_data["ts_zero_ns"] = fmt::to_string(origin);  // as text: it has more digits than a number in JSON may
  other_data["version"] = fmt::format("zoetrope {}", version());
  json.end(other_data);
  file.commit();
}

}  // namespace zoetrope::trace
