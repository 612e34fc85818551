#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/host_name.h"
#include "base/words.h"

namespace zoetrope {
namespace {

void write_holder(int file) {
  const std::string text = fmt::format("{} {}\n", ::getpid(), host_name());
  // Not an error: the text only helps whoever finds the lock taken.
  if (::ftruncate(file, 0) == 0) static_cast<void>(!::pwrite(file, text.data(), text.size(), 0));
}

// " (process 1234 on node1)", or nothing: older versions wrote no text, others may have written any, and a holder that
// has just locked the file has not replaced that of the one before.
std::string holder(int file) {
  std::array<char, 512> bytes{};
  const ssize_t count = ::pread(file, bytes.data(), bytes.size(), 0);
  const std::string_view text = trimmed({bytes.data(), static_cast<size_t>(std::max<ssize_t>(count, 0))}, "\n");
  const size_t space = std::min(text.find(' '), text.size());
  const std::optional<pid_t> process = to_number<pid_t>(text.substr(0, space));
  const std::string host(text.substr(std::min(space + 1, text.size())));
  if (!process || *process <= 0 || host.empty() || host.find_first_of(" \n") != std::string::npos) return "";
  if (host == host_name() && ::kill(*process, 0) != 0 && errno == ESRCH) return "";
  return fmt::format(" (process {} on {})", *process, host);
}

}  // namespace

FileLock::FileLock(const std::filesystem::path& file, std::string_view what, std::string_view taken)
    : file_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (file_.value() < 0) fail("{}: cannot be written: {}", what, system_message(errno));
  int code = 0;
  do code = ::flock(file_.value(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  while (code == EINTR);
  if (code == EWOULDBLOCK) throw TakenError(fmt::format("{}: {}{}", what, taken, holder(file_.value())));
  if (code != 0) fail("{}: cannot be locked: {}", what, system_message(code));
  write_holder(file_.value());
}

}  // namespace zoetrope
