#include "trace/resident.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <string_view>
#include <thread>

namespace zoetrope::trace {
namespace {

constexpr int64_t kKilobyte = 1024;
constexpr std::chrono::milliseconds kPeriod{20};

// A line of a file of /proc, "VmRSS:      1234 kB"; 0 where there is none.
int64_t bytes_in(const char* path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key) && line.size() > key.size() && line[key.size()] == ':')
      return std::strtoll(line.c_str() + key.size() + 1, nullptr, 10) * kKilobyte;
  }
  return 0;
}

int64_t status_bytes(std::string_view key) { return bytes_in("/proc/self/status", key); }

void raise_to(std::atomic<int64_t>& most, int64_t value) {
  int64_t seen = most.load();
  while (value > seen && !most.compare_exchange_weak(seen, value)) {
  }
}

}  // namespace

int64_t resident_bytes() { return status_bytes("VmRSS"); }
int64_t peak_resident_bytes() { return status_bytes("VmHWM"); }
int64_t anonymous_bytes() {
  const int64_t own = status_bytes("RssAnon");
  return status_bytes("RssShmem") == 0 ? own : own + bytes_in("/proc/self/smaps_rollup", "Pss_Shmem");
}
int64_t allocated_bytes() {
  ::malloc_trim(0);
  return anonymous_bytes();
}
int64_t virtual_bytes() { return status_bytes("VmSize"); }

struct ResidentMeter::Sampler {
  Sampler() : thread([this] { sample(); }) {}
  ~Sampler() {
    {
      const std::lock_guard lock(mutex);
      stopped = true;
    }
    changed.notify_all();
    thread.join();
  }

  void sample() {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kPeriod, [this] { return stopped; })) raise_to(most, resident_bytes());
  }

  std::atomic<int64_t> most{0};  // since it was last set to 0
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  std::thread thread;
};

ResidentMeter::ResidentMeter() : sampler_(std::make_unique<Sampler>()) {}
ResidentMeter::~ResidentMeter() = default;

void ResidentMeter::begin(const std::string& part) {
  end();
  part_ = part;
  record_before_ = peak_resident_bytes();
  sampler_->most = resident_bytes();
}

void ResidentMeter::end() {
  if (part_.empty()) return;
  const int64_t record = peak_resident_bytes();
  raise_to(sampler_->most, resident_bytes());
  const int64_t bytes = record > record_before_ ? record : sampler_->most.load();
  const auto known = std::find_if(peaks_.begin(), peaks_.end(), [&](const Peak& peak) { return peak.part == part_; });
  if (known == peaks_.end()) peaks_.push_back({part_, bytes});
  else known->bytes = std::max(known->bytes, bytes);
  part_.clear();
}

std::vector<ResidentMeter::Peak> ResidentMeter::peaks() const { return peaks_; }

}  // namespace zoetrope::trace
