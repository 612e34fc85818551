// Removes temporary files when the process ends early: by a signal, by _Exit, by another rank's failure. All of them
// are in one list that a signal handler can walk. On the usual ways out, return and exceptions, destructors remove
// them, and this list is not needed.
#pragma once

#include <string>

namespace zoetrope {

// Removes every path of the list: files, then empty folders. From then on no new one may be created; open files lose
// their name and cannot be renamed to their final one. Safe in a signal handler, on any thread.
void remove_unfinished_files() noexcept;
bool unfinished_files_removed() noexcept;

// A path on the list, while this exists. Add a file before it is created, so that there is no gap, and check
// unfinished_files_removed() afterwards.
class UnfinishedPath {
 public:
  enum class Kind { kFile, kFolder };

  UnfinishedPath() = default;
  UnfinishedPath(const std::string& path, Kind kind);
  UnfinishedPath(UnfinishedPath&& other) noexcept;
  UnfinishedPath& operator=(UnfinishedPath&& other) noexcept;
  ~UnfinishedPath() { forget(); }

  void forget() noexcept;  // removes it from the list

  struct Slot;

 private:
  Slot* slot_ = nullptr;
};

}  // namespace zoetrope
