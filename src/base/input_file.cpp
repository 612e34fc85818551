#include "base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/run_files.h"

namespace zoetrope {
namespace {

int64_t nanoseconds(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

FileStamp stamp_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size), nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim)};
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return stamp_of(status);
}

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::status_known(status) && error != std::errc::filename_too_long)
    fail("{}: cannot be reached: {}", path.string(), error.message());
  return std::filesystem::is_directory(status);
}

void wait_until_past(const FileStamp& stamp) {
  using std::chrono::nanoseconds;
  const nanoseconds step(stamp.coarse() ? 2'000'000'000 : 10'000'000);
  const nanoseconds left = nanoseconds(stamp.changed_ns) + step - std::chrono::system_clock::now().time_since_epoch();
  // Times further in the future come from another machine's clock: waiting is pointless.
  if (left > nanoseconds::zero() && left <= step) std::this_thread::sleep_for(left);
}

InputFile::InputFile(const std::filesystem::path& path, Kind kind) : path_(path) {
  // A pipe is opened without waiting for its writer, a terminal without becoming the controlling terminal.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor_ < 0) {
    const int code = errno;
    if (code == ENOENT) fail("{}: no such file", path.string());
    if (code == ENXIO) fail("{}: is not a regular file", path.string());  // a socket, a device without a driver
    fail("{}: cannot be opened: {}", path.string(), system_message(code));
  }
  struct stat status {};
  const bool known = ::fstat(descriptor_, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string why = known ? fmt::format("is {}, but a regular file is needed", kind_of(status.st_mode))
                                  : "cannot be looked at: " + system_message(errno);
    ::close(descriptor_);
    fail("{}: {}", path.string(), why);
  }
  stamp_ = stamp_of(status);
  if (kind == Kind::kInput) note_input(path, stamp_.device, stamp_.inode);
}

InputFile::~InputFile() { ::close(descriptor_); }

void InputFile::read(uint64_t offset, void* target, size_t count) const {
  auto* to = static_cast<char*>(target);
  while (count > 0) {
    const ssize_t done = ::pread(descriptor_, to, count, static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("{}: cannot be read: {}", path_.string(), system_message(errno));
    if (done == 0) fail("{}: ends before byte {}; it was shortened while it was read", path_.string(), offset + count);
    to += done;
    offset += static_cast<uint64_t>(done);
    count -= static_cast<size_t>(done);
  }
}

std::string read_file(const std::filesystem::path& path, size_t limit, InputFile::Kind kind) {
  const InputFile file(path, kind);
  if (file.bytes() > limit) {
    fail("{}: has {} bytes, more than the {} a file of this kind may have", path.string(), file.bytes(), limit);
  }
  std::string text(file.bytes(), '\0');
  file.read(0, text.data(), text.size());
  return text;
}

}  // namespace zoetrope
