// A file as memory. All files of weights are mapped with this class, because the system ends a process that touches a
// page which its file no longer has (cut off by somebody, or on a disk that fails) by SIGBUS: who catches that signal
// can say which file it was.
#pragma once

#include <cstddef>
#include <string>

namespace zoetrope {

class FileMap {
 public:
  enum class Access { kRead, kReadWrite };

  FileMap() = default;  // of nothing
  // All `bytes` of an open file, which may be closed afterwards. `name` is for errors. Error "NAME: cannot be mapped".
  FileMap(int descriptor, size_t bytes, const std::string& name, Access access = Access::kRead);
  FileMap(FileMap&& other) noexcept;
  FileMap& operator=(FileMap&& other) noexcept;
  ~FileMap();

  std::byte* data() const { return data_; }  // null where there is none

  struct Slot;

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  Slot* slot_ = nullptr;
};

// The name of the file that is mapped at this address, as it may be printed, or null. Safe in a signal handler.
const char* name_of_file_mapped_at(const void* address) noexcept;

}  // namespace zoetrope
