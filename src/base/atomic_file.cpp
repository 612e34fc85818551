#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/run_files.h"

namespace zoetrope {

namespace {

constexpr std::string_view kTemporaryBegin = ".zoetrope-", kTemporaryEnd = ".partial";

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// N if `path` is /proc/self/fd/N, by any name of this process.
std::optional<int> own_descriptor(const std::filesystem::path& path) {
  std::error_code none;
  const std::filesystem::path folder = std::filesystem::canonical(folder_of(path), none);
  if (none || folder != fmt::format("/proc/{}/fd", ::getpid())) return std::nullopt;
  const std::string name = path.filename().string();
  int number = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() ? std::optional(number) : std::nullopt;
}

// Where the bytes go: a file name with all links resolved, or a stream.
struct Target {
  std::filesystem::path path;
  bool stream = false;            // a pipe, a terminal, a device, or a descriptor that this process was given
  std::optional<int> descriptor;  // of this process: /dev/stdout, /dev/fd/N
};

Target target_of(const std::filesystem::path& named) {
  constexpr int kMostLinks = 40;  // as the kernel
  if (named.filename().empty()) fail("'{}': names a folder, but a file name is needed", named.string());
  std::filesystem::path path = named;
  for (int links = 0;; ++links) {
    if (const std::optional<int> descriptor = own_descriptor(path)) return {path, true, descriptor};
    std::error_code none;
    const std::filesystem::path link = std::filesystem::read_symlink(path, none);
    if (none) break;
    if (links == kMostLinks) fail("{}: a link that leads through more than {} others", named.string(), kMostLinks);
    path = link.is_absolute() ? link : folder_of(path) / link;
  }
  struct stat status {};
  const bool there = ::stat(path.c_str(), &status) == 0;
  if (!there && errno == ENAMETOOLONG) fail("{}: cannot be written: {}", named.string(), system_message(errno));
  if (!there || S_ISREG(status.st_mode)) return {path, false, {}};
  if (S_ISFIFO(status.st_mode) || S_ISCHR(status.st_mode)) return {path, true, {}};
  fail("{}: exists and is {}, so no file can be written under this name", named.string(),
       S_ISDIR(status.st_mode) ? "a folder" : "neither a file nor a stream");
}

// Makes the rename itself durable. Best effort: some file systems refuse to flush a folder.
void flush_folder(const std::filesystem::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

// What went wrong, or nothing.
std::string write_all(int descriptor, const void* data, size_t bytes) {
  const char* cursor = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor, cursor, std::min(bytes, size_t{1} << 30));
    if (written < 0) {
      if (errno == EINTR) continue;
      return system_message(errno);
    }
    cursor += written;
    bytes -= static_cast<size_t>(written);
  }
  return {};
}

// Opens a stream for writing. Waits a while for the reader of a pipe.
int open_stream(const Target& target, const std::filesystem::path& named) {
  constexpr std::chrono::seconds kPatience{5};
  if (target.descriptor) return ::fcntl(*target.descriptor, F_DUPFD_CLOEXEC, 0);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (;;) {
    const int descriptor = ::open(target.path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor >= 0) {
      ::fcntl(descriptor, F_SETFL, O_WRONLY);  // waits for a slow reader from here on
      return descriptor;
    }
    if (errno != ENXIO) return -1;
    if (std::chrono::steady_clock::now() > end)
      fail("{}: a pipe that no program reads; start its reader first", named.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path final_path) : final_(std::move(final_path)) {
  static std::atomic<uint64_t> counter{0};
  check_not_stopped();
  const Target target = target_of(final_);
  check_spares_inputs(target.path, final_);
  target_ = target.path;
  std::filesystem::path folder = folder_of(target_);
  if (target.stream) {
    stream_ = open_stream(target, final_);
    if (stream_ < 0) fail("{}: cannot be written: {}", final_.string(), system_message(errno));
    folder = std::filesystem::temp_directory_path();
  }
  // Short and independent of the final name, which may already be as long as the file system allows.
  while (descriptor_ < 0) {
    temporary_ = folder / fmt::format("{}{}-{}{}", kTemporaryBegin, ::getpid(), counter++, kTemporaryEnd);
    unfinished_ = UnfinishedPath(temporary_.string(), UnfinishedPath::Kind::kFile);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) {
      const int code = errno;
      discard();
      fail("{}: cannot be written: {} (folder {})", final_.string(), system_message(code), folder.string());
    }
  }
  if (!unfinished_files_removed()) return;
  discard();
  check_not_stopped();
}

bool is_unfinished_file(std::string_view name) {
  return name.starts_with(kTemporaryBegin) && name.ends_with(kTemporaryEnd);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

OutputPlace output_place(const std::filesystem::path& path) {
  const Target target = target_of(path);
  return {target.path, target.stream};
}

void check_writable(const std::filesystem::path& path) {
  const Target target = target_of(path);
  if (!target.stream) {
    AtomicFile{path};
    return;
  }
  check_spares_inputs(target.path, path);
  if (target.descriptor) {
    const int flags = ::fcntl(*target.descriptor, F_GETFL);
    if (flags == -1) fail("{}: this descriptor is not open", path.string());
    if ((flags & O_ACCMODE) == O_RDONLY) fail("{}: this descriptor is not open for writing", path.string());
  } else if (::access(target.path.c_str(), W_OK) != 0) {
    fail("{}: cannot be written: {}", path.string(), system_message(errno));
  }
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : final_(std::move(other.final_)),
      target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      unfinished_(std::move(other.unfinished_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      stream_(std::exchange(other.stream_, -1)) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (stream_ >= 0) ::close(std::exchange(stream_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::check_not_stopped() const {
  if (unfinished_files_removed())
    fail("{}: interrupted before it was complete, so it was not written", final_.string());
}

void AtomicFile::write(const void* data, size_t bytes) {
  ZT_CHECK(descriptor_ >= 0, "write after close of {}", final_.string());
  const std::string problem = write_all(descriptor_, data, bytes);
  if (!problem.empty()) fail("{}: cannot be written: {}", final_.string(), problem);
}

void AtomicFile::close() {
  if (descriptor_ < 0) return;
  const int flushed = ::fsync(descriptor_) == 0 ? 0 : errno;
  const int closed = ::close(std::exchange(descriptor_, -1)) == 0 ? 0 : errno;
  // EINVAL and EROFS: the file system does not support flushing, which loses no data.
  const int code = flushed == 0 || flushed == EINVAL || flushed == EROFS ? closed : flushed;
  if (code != 0) fail("{}: cannot be written: {}", final_.string(), system_message(code));
}

void AtomicFile::commit() {
  if (stream_ >= 0) return send();
  commit_as(final_);
}

// A stream gets all data at once, when it is complete.
void AtomicFile::send() {
  close();
  std::fflush(stdout);  // keeps the order if this is the same stream
  const int from = ::open(temporary_.c_str(), O_RDONLY | O_CLOEXEC);
  if (from < 0) check_not_stopped();
  std::vector<char> chunk(size_t{1} << 20);
  std::string problem = from < 0 ? system_message(errno) : "";
  while (problem.empty()) {
    const ssize_t count = ::read(from, chunk.data(), chunk.size());
    if (count == 0) break;
    if (count < 0 && errno != EINTR) problem = system_message(errno);
    if (count > 0) problem = write_all(stream_, chunk.data(), static_cast<size_t>(count));
  }
  if (from >= 0) ::close(from);
  if (::close(std::exchange(stream_, -1)) != 0 && problem.empty()) problem = system_message(errno);
  if (!problem.empty()) fail("{}: cannot be written: {}", final_.string(), problem);
  ::unlink(temporary_.c_str());
  unfinished_.forget();
  temporary_.clear();
}

void AtomicFile::commit_as(const std::filesystem::path& final_path) {
  ZT_CHECK(!temporary_.empty(), "{} is committed already", final_path.string());
  close();
  const Target target = target_of(final_path);
  check_spares_inputs(target.path, final_path);
  if (target.stream || folder_of(target.path) != folder_of(target_)) {
    fail("{}: leads to another place than it did when the run began, so it is not replaced", final_path.string());
  }
  if (::rename(temporary_.c_str(), target.path.c_str()) != 0) {
    const int code = errno;
    check_not_stopped();
    fail("{}: cannot be put in place: {}", final_path.string(), system_message(code));
  }
  unfinished_.forget();
  final_ = final_path;
  target_ = target.path;
  temporary_.clear();
  flush_folder(folder_of(target_));
}

}  // namespace zoetrope
