// What must not stay behind when the process ends in the middle: by a signal, by _Exit, by another rank's failure.
// Every temporary file is kept in one list that a signal handler can walk. Not for the usual ways out: there
// destructors remove.
#pragma once

#include <string>

namespace zoetrope {

// Removes every path of the list: files, then folders that are empty. From then on no new one may be made: whoever is
// writing goes on into a file without a name, and cannot put it in place. Safe in a signal handler, on any thread.
void remove_unfinished_files() noexcept;
bool unfinished_files_removed() noexcept;

// A path on the list, for as long as this lives. A file is listed before it is made, so that no moment is missed; its
// maker looks at unfinished_files_removed() afterwards.
class UnfinishedPath {
 public:
  enum class Kind { kFile, kFolder };

  UnfinishedPath() = default;
  UnfinishedPath(const std::string& path, Kind kind);
  UnfinishedPath(UnfinishedPath&& other) noexcept;
  UnfinishedPath& operator=(UnfinishedPath&& other) noexcept;
  ~UnfinishedPath() { forget(); }

  void forget() noexcept;  // it may stay, or is gone

  struct Slot;

 private:
  Slot* slot_ = nullptr;
};

}  // namespace zoetrope
