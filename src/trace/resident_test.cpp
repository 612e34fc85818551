#include "trace/resident.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/error.h"

namespace zoetrope::trace {
namespace {

constexpr int64_t kMegabyte = int64_t{1} << 20;

// Pages that are really there, and really gone with it.
class Pages {
 public:
  explicit Pages(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    memory_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ZT_CHECK(memory_ != MAP_FAILED);
    std::memset(memory_, 1, bytes_);
  }
  ~Pages() { ::munmap(memory_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

 private:
  size_t bytes_;
  void* memory_;
};

// A process alone has all of it.
TEST(Resident, CountsMemoryThatProcessesShare) {
  const int64_t before = anonymous_bytes();
  const int file = ::memfd_create("test", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::ftruncate(file, 64 * kMegabyte), 0);
  void* memory = ::mmap(nullptr, 64 * kMegabyte, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, 64 * kMegabyte);
  EXPECT_GE(anonymous_bytes(), before + 56 * kMegabyte);
  ::munmap(memory, 64 * kMegabyte);
  ::close(file);
  EXPECT_LE(anonymous_bytes(), before + 32 * kMegabyte);
}

TEST(Resident, SeesPagesComeAndGo) {
  const int64_t before = resident_bytes(), space = virtual_bytes();
  {
    const Pages pages(64 * kMegabyte);
    EXPECT_GE(resident_bytes(), before + 56 * kMegabyte);  // the kernel counts in batches a CPU
    EXPECT_GE(virtual_bytes(), space + 64 * kMegabyte);
  }
  EXPECT_LE(resident_bytes(), before + 32 * kMegabyte);
  EXPECT_GE(peak_resident_bytes(), before + 56 * kMegabyte);
}

// The second part stays below the first, so it is sampled: it must last a few samples.
TEST(Resident, EachPartHasItsOwnPeak) {
  ResidentMeter meter;
  const int64_t before = resident_bytes();
  meter.begin("large");
  { const Pages pages(192 * kMegabyte); }
  meter.begin("small");
  {
    const Pages pages(64 * kMegabyte);
    for (int i = 0; i < 3; ++i) {
      meter.end();  // takes in what is resident now, whatever was sampled
      meter.begin("small");
    }
  }
  meter.end();
  const auto peaks = meter.peaks();
  ASSERT_EQ(peaks.size(), 2u);
  EXPECT_EQ(peaks[0].part, "large");
  EXPECT_EQ(peaks[1].part, "small");
  EXPECT_GE(peaks[0].bytes, before + 184 * kMegabyte);
  EXPECT_GE(peaks[1].bytes, before + 56 * kMegabyte);
#ifndef __SANITIZE_THREAD__  // what it remembers of the large part's accesses stays resident
  EXPECT_LE(peaks[1].bytes, before + 128 * kMegabyte);
#endif
}

}  // namespace
}  // namespace zoetrope::trace
