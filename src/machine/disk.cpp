#include "machine/disk.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/descriptor.h"

namespace zoetrope::machine {
namespace {

constexpr int64_t kPiece = int64_t{8} << 20;  // of one read: disks work on several parts of it at once
constexpr int64_t kMostBytes = int64_t{256} << 20;
constexpr double kMostSeconds = 0.5;
constexpr size_t kAlignment = 4096;  // that reads past the page cache need

class File {
 public:
  File(const std::filesystem::path& path, int flags) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags)) {}
  int fd() const { return fd_.value(); }
  // 0 for what is not a file, too.
  int64_t bytes() const {
    struct stat info {};
    return fd() >= 0 && ::fstat(fd(), &info) == 0 && S_ISREG(info.st_mode) ? int64_t{info.st_size} : 0;
  }
  // Whether the system tells this user which pages are in memory.
  bool tells_pages(const std::filesystem::path& path) const {
    struct stat info {};
    return ::fstat(fd(), &info) == 0 && (info.st_uid == ::geteuid() || ::access(path.c_str(), W_OK) == 0);
  }

 private:
  Descriptor fd_;
};

// bytes/s of the middle of a file; 0 where a read is refused.
double read_middle(const File& file) {
  const int64_t size = file.bytes(), bytes = std::min(size, kMostBytes);
  if (bytes == 0) return 0;
  const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(kAlignment, kPiece), &std::free);
  if (buffer == nullptr) return 0;
  const int64_t begin = (size - bytes) / 2 / kPiece * kPiece, end = std::min(size, begin + bytes);
  ::posix_fadvise(file.fd(), begin, end - begin, POSIX_FADV_DONTNEED);
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double seconds = 0;
  int64_t at = begin;
  while (at < end && seconds < kMostSeconds) {
    // A whole piece at the end, too, for reads past the page cache are of whole blocks: it stops at the file's end.
    const ssize_t got = ::pread(file.fd(), buffer.get(), kPiece, at);
    if (got <= 0) return 0;
    at += got;
    seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (got % static_cast<ssize_t>(kAlignment) != 0) break;
  }
  return seconds > 0 ? static_cast<double>(at - begin) / seconds : 0;
}

}  // namespace

double disk_bandwidth(const std::filesystem::path& file) {
  const double direct = read_middle(File(file, O_DIRECT));
  return direct > 0 ? direct : read_middle(File(file, 0));
}

double resident_share(const std::filesystem::path& path) {
  const File file(path, 0);
  const auto bytes = static_cast<size_t>(file.bytes());
  if (bytes == 0 || !file.tells_pages(path)) return 0;
  void* const map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.fd(), 0);
  if (map == MAP_FAILED) return 0;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes + page - 1) / page);
  const bool told = ::mincore(map, bytes, pages.data()) == 0;
  ::munmap(map, bytes);
  if (!told) return 0;
  const auto resident = std::count_if(pages.begin(), pages.end(), [](unsigned char state) { return (state & 1) != 0; });
  return static_cast<double>(resident) / static_cast<double>(pages.size());
}

}  // namespace zoetrope::machine
