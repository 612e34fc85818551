#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>

#include "base/error.h"

namespace zoetrope {

FileLock::FileLock(const std::filesystem::path& file, std::string_view what, std::string_view taken)
    : file_(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
  if (file_.value() < 0) fail("{}: cannot be written: {}", what, system_message(errno));
  int code = 0;
  do code = ::flock(file_.value(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  while (code == EINTR);
  if (code == EWOULDBLOCK) fail("{}: {}", what, taken);
  if (code != 0) fail("{}: cannot be locked: {}", what, system_message(code));
}

}  // namespace zoetrope
