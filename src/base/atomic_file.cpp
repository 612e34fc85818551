#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace zoetrope {

namespace {

std::string system_message(int code) { return std::generic_category().message(code); }

void check_replaceable(const std::filesystem::path& path) {
  if (path.filename().empty()) fail("'{}': names a folder, but a file name is needed", path.string());
  struct stat status {};
  // Renaming over a device node would replace it, so only regular files and free names are taken.
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
  fail("{}: exists and is {}, so no file can be written under this name", path.string(),
       S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
}

// Makes the rename itself durable. Best effort: some file systems refuse to flush a folder.
void flush_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path final_path) : final_(std::move(final_path)) {
  static std::atomic<uint64_t> counter{0};
  check_not_stopped();
  check_replaceable(final_);
  // Short and independent of the final name, which may already be as long as the file system allows.
  while (descriptor_ < 0) {
    temporary_ = folder_of(final_) / fmt::format(".zoetrope-{}-{}.partial", ::getpid(), counter++);
    unfinished_ = UnfinishedPath(temporary_.string(), UnfinishedPath::Kind::kFile);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) {
      fail("{}: cannot be written: {} (folder {})", final_.string(), system_message(errno), folder_of(final_).string());
    }
  }
  if (!unfinished_files_removed()) return;
  discard();
  check_not_stopped();
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : final_(std::move(other.final_)),
      temporary_(std::exchange(other.temporary_, {})),
      unfinished_(std::move(other.unfinished_)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::check_not_stopped() const {
  if (unfinished_files_removed())
    fail("{}: interrupted before it was complete, so it was not written", final_.string());
}

void AtomicFile::write(const void* data, size_t bytes) {
  ZT_CHECK(descriptor_ >= 0, "write after close of {}", final_.string());
  const char* cursor = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, cursor, std::min(bytes, size_t{1} << 30));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail("{}: cannot be written: {}", final_.string(), system_message(errno));
    }
    cursor += written;
    bytes -= static_cast<size_t>(written);
  }
}

void AtomicFile::close() {
  if (descriptor_ < 0) return;
  const int flushed = ::fsync(descriptor_) == 0 ? 0 : errno;
  const int closed = ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno;
  // EINVAL and EROFS: the file system has no notion of flushing, which is no loss of data.
  const int code = flushed == 0 || flushed == EINVAL || flushed == EROFS ? closed : flushed;
  if (code != 0) fail("{}: cannot be written: {}", final_.string(), system_message(code));
}

void AtomicFile::commit() { commit_as(final_); }

void AtomicFile::commit_as(const std::filesystem::path& final_path) {
  ZT_CHECK(!temporary_.empty(), "{} is committed already", final_path.string());
  ZT_CHECK(folder_of(final_path) == folder_of(final_));
  close();
  check_replaceable(final_path);
  if (::rename(temporary_.c_str(), final_path.c_str()) != 0) {
    const int code = errno;
    check_not_stopped();
    fail("{}: cannot be put in place: {}", final_path.string(), system_message(code));
  }
  unfinished_.forget();
  final_ = final_path;
  temporary_.clear();
  flush_folder(folder_of(final_));
}

}  // namespace zoetrope
