#include "io/weights/weight_stream.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <utility>

#include "base/descriptor.h"
#include "base/error.h"

namespace zoetrope::io {
namespace {

constexpr size_t kPlaces = 3;  // one in use, one ready, one being read

struct Pages {
  std::byte* begin;
  size_t bytes;
};
// The pages that a range lies in, rounded outwards to multiples of `unit`.
Pages pages_of(const WeightStream::Range& range, uintptr_t unit) {
  const auto address = reinterpret_cast<uintptr_t>(range.begin);
  const uintptr_t begin = address / unit * unit, end = (address + range.bytes + unit - 1) / unit * unit;
  return {const_cast<std::byte*>(range.begin) - (address - begin), end - begin};
}

uintptr_t page_size() { return static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)); }

// Ranges side by side, up to their alignment, become one: each range costs a call, and shares the pages at its ends.
void join_neighbours(std::vector<WeightStream::Range>& ranges) {
  constexpr std::ptrdiff_t kGap = 64;
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  std::vector<WeightStream::Range> joined;
  for (const WeightStream::Range& range : ranges) {
    if (!joined.empty() && range.begin - (joined.back().begin + joined.back().bytes) < kGap)
      joined.back().bytes = static_cast<size_t>(range.begin - joined.back().begin) + range.bytes;
    else joined.push_back(range);
  }
  ranges = std::move(joined);
}

size_t largest_part(const std::vector<WeightStream::Part>& parts) {
  size_t largest = 0;
  for (const WeightStream::Part& part : parts) largest = std::max(largest, part.bytes());
  return largest;
}

class FileStorage final : public WeightStream::Storage {
 public:
  FileStorage(std::string name, int descriptor, uint64_t begin, std::byte* places)
      : name_(std::move(name)),
        file_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)),
        begin_(static_cast<off_t>(begin)),
        places_(places) {}

  void read(std::span<const WeightStream::Range> ranges) override {
    for (const WeightStream::Range& range : ranges) {
      const std::ptrdiff_t at = range.begin - places_;
      ::posix_fadvise(file_.value(), begin_ + at, static_cast<off_t>(range.bytes), POSIX_FADV_WILLNEED);
      std::byte* to = places_ + at;
      for (size_t left = range.bytes; left > 0;) {
        const ssize_t got = ::pread(file_.value(), to, left, begin_ + (to - places_));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
          fail("{}: cannot be read ({}); weights must stay as they are while they are in use", name_,
               got < 0 ? system_message(errno) : "it was cut off");
        }
        to += got;
        left -= static_cast<size_t>(got);
      }
    }
  }
  void release(const WeightStream::Range& range) override { release_whole_pages(range); }

 private:
  std::string name_;
  Descriptor file_;
  off_t begin_;
  std::byte* places_;
};

}  // namespace

std::shared_ptr<WeightStream::Storage> file_storage(std::string name, int descriptor, uint64_t begin,
                                                    std::byte* places) {
  return std::make_shared<FileStorage>(std::move(name), descriptor, begin, places);
}

void release_pages(const WeightStream::Range& range, const WeightStream::Range& mapping) {
  if (range.bytes == 0) return;
  constexpr uintptr_t kAround = uintptr_t{2} << 20;
  const Pages whole = pages_of(mapping, page_size());
  Pages pages = pages_of(range, kAround);
  const auto end = std::min(pages.begin + pages.bytes, whole.begin + whole.bytes);
  pages.begin = std::max(pages.begin, whole.begin);
  ::madvise(pages.begin, static_cast<size_t>(end - pages.begin), MADV_DONTNEED);
}

void release_whole_pages(const WeightStream::Range& range) {
  const uintptr_t page = page_size(), address = reinterpret_cast<uintptr_t>(range.begin);
  const uintptr_t begin = (address + page - 1) / page * page, end = (address + range.bytes) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(range.begin) + (begin - address), end - begin, MADV_DONTNEED);
}

size_t WeightStream::Part::bytes() const {
  size_t sum = 0;
  for (const Range& range : ranges) sum += range.bytes;
  return sum;
}

size_t WeightStream::least_bytes(const std::vector<Part>& parts) { return 2 * largest_part(parts); }
size_t WeightStream::usual_bytes(const std::vector<Part>& parts) { return kPlaces * largest_part(parts); }

std::vector<bool> WeightStream::staying(const std::vector<size_t>& candidates, size_t others, size_t largest,
                                        size_t bytes) {
  const size_t count = candidates.size(), all = std::accumulate(candidates.begin(), candidates.end(), others);
  if (bytes >= all) return std::vector<bool>(count, true);
  const size_t room = bytes - std::min(bytes, kPlaces * largest);
  for (size_t stay = count; stay > 0; --stay) {
    std::vector<bool> stays(count);
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      stays[i] = (i + 1) * stay / count > i * stay / count;
      if (stays[i]) kept += candidates[i];
    }
    if (kept <= room) return stays;
  }
  return std::vector<bool>(count, false);
}

WeightStream::WeightStream(std::shared_ptr<Storage> storage, std::vector<Part> parts, size_t bytes)
    : storage_(std::move(storage)) {
  ZT_CHECK(bytes >= least_bytes(parts), "{} bytes for parts of up to {}", bytes, largest_part(parts));
  std::vector<size_t> candidates;
  size_t others = 0;
  for (const Part& part : parts) {
    if (part.may_stay) candidates.push_back(part.bytes());
    else others += part.bytes();
  }
  const std::vector<bool> stays = staying(candidates, others, largest_part(parts), bytes);
  size_t kept = 0, seen = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    Entry entry;
    entry.bytes = parts[i].bytes();
    join_neighbours(parts[i].ranges);
    entry.stays = parts[i].may_stay && stays[seen++];
    entry.part = std::move(parts[i]);
    entry.next = i + 1 < parts.size() ? i + 1 : 0;
    if (entry.stays) kept += entry.bytes;
    entries_.push_back(std::move(entry));
  }
  room_ = bytes - kept;
  reader_ = std::jthread([this] { read_parts(); });
}

WeightStream::~WeightStream() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  storage_->stop();
}

WeightStream::Use::Use(Use&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)), part_(other.part_) {}
WeightStream::Use::~Use() {
  if (stream_ != nullptr) stream_->release(part_);
}

WeightStream::Use WeightStream::use(size_t part) {
  std::unique_lock lock(mutex_);
  ZT_CHECK(part < entries_.size());
  Entry& entry = entries_[part];
  if (current_ != kNone && current_ != part) entries_[current_].next = part;
  current_ = part;
  ++entry.users;
  entry.last_use = ++uses_;
  give_orders();
  changed_.wait(lock, [&] { return is_present(entry) || failure_ != nullptr; });
  if (failure_ == nullptr) return {this, part};
  --entry.users;
  std::rethrow_exception(failure_);
}

void WeightStream::release(size_t part) {
  const std::lock_guard lock(mutex_);
  --entries_[part].users;
  give_orders();
}

void WeightStream::settle() {
  if (!storage_->collective()) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ == given_ || failure_ != nullptr; });
}

bool WeightStream::failed() const {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

size_t WeightStream::kept_parts() const {
  const std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(entries_.begin(), entries_.end(), [](const Entry& e) { return e.stays; }));
}

size_t WeightStream::resident_bytes() const {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const Entry& entry : entries_) sum += entry.in_memory ? entry.bytes : 0;
  return sum;
}

uint64_t WeightStream::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

// Parts that should be in memory, the most urgent first: those in use, then those that follow, as far as there is room.
std::vector<size_t> WeightStream::wanted() const {
  std::vector<size_t> parts;
  size_t bytes = 0;
  const auto add = [&](size_t part) {
    if (std::find(parts.begin(), parts.end(), part) != parts.end()) return false;
    const Entry& entry = entries_[part];
    const size_t needed = entry.stays ? 0 : entry.bytes;
    if (entry.users == 0 && bytes + needed > room_) return false;
    bytes += needed;
    parts.push_back(part);
    return true;
  };
  for (size_t part = 0; part < entries_.size(); ++part)
    if (entries_[part].users > 0) add(part);
  if (current_ == kNone) return parts;
  if (entries_[current_].users == 0 && entries_[current_].taken && parts.empty()) add(current_);
  size_t part = entries_[current_].next;
  for (size_t i = 0; i < entries_.size() && (add(part) || entries_[part].users > 0); ++i) part = entries_[part].next;
  return parts;
}

// Of the parts that nobody uses, and that are not to be kept, the least recently used, until `bytes` more fit. Unset:
// they never do.
std::optional<std::vector<size_t>> WeightStream::room_for(size_t bytes, const std::vector<size_t>& keep) const {
  std::vector<size_t> parts;
  for (size_t part = 0; part < entries_.size(); ++part) {
    const Entry& entry = entries_[part];
    if (entry.stays || entry.users > 0 || !entry.taken) continue;
    if (std::find(keep.begin(), keep.end(), part) == keep.end()) parts.push_back(part);
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [&](size_t a, size_t b) { return entries_[a].last_use < entries_[b].last_use; });
  size_t occupied = occupied_, released = 0;
  while (occupied + bytes > room_) {
    if (released == parts.size()) return std::nullopt;
    occupied -= entries_[parts[released++]].bytes;
  }
  parts.resize(released);
  return parts;
}

// To read the parts that are wanted, as far as there is room without those that are needed sooner.
void WeightStream::give_orders() {
  const std::vector<size_t> parts = wanted();
  for (size_t i = 0; i < parts.size(); ++i) {
    Entry& entry = entries_[parts[i]];
    if (entry.taken) continue;
    const std::vector<size_t> sooner(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i));
    const size_t bytes = entry.stays ? 0 : entry.bytes;
    const auto released = room_for(bytes, sooner);
    if (!released) break;
    for (const size_t part : *released) {
      entries_[part].taken = false;
      occupied_ -= entries_[part].bytes;
    }
    entry.taken = true;
    entry.order = ++given_;
    occupied_ += bytes;
    orders_.push_back({*released, parts[i]});
  }
  changed_.notify_all();
}

void WeightStream::read_parts() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopped_ || failure_ != nullptr || !orders_.empty(); });
    if (stopped_ || failure_ != nullptr) return;
    const Order order = std::move(orders_.front());
    orders_.pop_front();
    for (const size_t part : order.released) entries_[part].in_memory = false;
    entries_[order.part].in_memory = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      for (const size_t part : order.released)
        for (const Range& range : entries_[part].part.ranges) storage_->release(range);
      storage_->read(entries_[order.part].part.ranges);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure == nullptr) {
      ++done_;
      bytes_read_ += entries_[order.part].bytes;
    } else {
      failure_ = failure;
    }
    changed_.notify_all();
  }
}

}  // namespace zoetrope::io
