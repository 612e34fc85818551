// A file that one process at a time holds: whoever uses a folder holds the lock in it.
#pragma once

#include <filesystem>
#include <string_view>

#include "zoetrope/error.h"

#include "base/descriptor.h"

namespace zoetrope {

// Something is in use by another process, or holds what is not to be replaced.
struct TakenError : Error {
  using Error::Error;
};

class FileLock {
 public:
  // Makes the file, which its owner alone may read, where there is none. Throws Error that begins with `what`
  // ("journal DIR"); where another process holds it, it is a TakenError and `taken` follows, and which one that is, if
  // the file says so.
  FileLock(const std::filesystem::path& file, std::string_view what, std::string_view taken);

 private:
  const Descriptor file_;  // closing it, or the end of the process, gives the lock up
};

}  // namespace zoetrope
