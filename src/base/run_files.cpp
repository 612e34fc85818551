#include "base/run_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <compare>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;

// A file that is new may have the device and inode of one that is gone; where the file system knows it, not its birth.
struct Identity {
  uint64_t device_major, device_minor, inode;
  int64_t born_seconds, born_nanoseconds;  // 0: not known
  auto operator<=>(const Identity&) const = default;
};

struct LiveRuns {
  std::mutex mutex;
  std::vector<RunFiles*> runs;  // the latest last
};

LiveRuns& live() {
  static LiveRuns all;
  return all;
}

std::optional<Identity> identity_of(int descriptor, const char* path, int flags) {
  struct statx status {};
  if (::statx(descriptor, path, flags, STATX_INO | STATX_BTIME, &status) != 0) return std::nullopt;
  const bool born = (status.stx_mask & STATX_BTIME) != 0;
  return Identity{status.stx_dev_major, status.stx_dev_minor, status.stx_ino, born ? status.stx_btime.tv_sec : 0,
                  born ? int64_t{status.stx_btime.tv_nsec} : 0};
}
std::optional<Identity> identity_of(const fs::path& path) { return identity_of(AT_FDCWD, path.c_str(), 0); }

bool same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  if (fs::equivalent(a, b, ignored)) return true;
  return fs::weakly_canonical(fs::absolute(a), ignored) == fs::weakly_canonical(fs::absolute(b), ignored);
}

}  // namespace

std::string if_exists(const std::string& path) { return is_there(path) ? path : ""; }

void check_files_differ(std::initializer_list<NamedFile> files) {
  for (const NamedFile* file = files.begin(); file != files.end(); ++file) {
    for (const NamedFile* other = files.begin(); other != file; ++other) {
      if (file->path.empty() || other->path.empty() || !same_file(file->path, other->path)) continue;
      fail("{}={} is the same file as {}={}; each needs a file of its own", file->key, file->path, other->key,
           other->path);
    }
  }
}

struct RunFiles::Notes {
  std::map<Identity, std::string> files;
  std::map<Identity, std::string> folders;

  // Under the lock.
  static void add_file(const Identity& identity, const std::string& path) {
    if (!live().runs.empty()) live().runs.back()->notes_->files.emplace(identity, path);
  }
  static void add_folder(const Identity& identity, const std::string& path) {
    if (!live().runs.empty()) live().runs.back()->notes_->folders.emplace(identity, path);
  }
  static const std::string* find(const Identity& identity, std::map<Identity, std::string> Notes::*kind) {
    for (const RunFiles* run : live().runs) {
      const auto& known = (*run->notes_).*kind;
      if (const auto at = known.find(identity); at != known.end()) return &at->second;
    }
    return nullptr;
  }
};

RunFiles::RunFiles() : notes_(std::make_unique<Notes>()) {
  const std::lock_guard lock(live().mutex);
  live().runs.push_back(this);
}

RunFiles::~RunFiles() {
  const std::lock_guard lock(live().mutex);
  std::erase(live().runs, this);
}

void note_input(const fs::path& path, int descriptor) {
  const std::optional<Identity> identity =
      descriptor < 0 ? identity_of(path) : identity_of(descriptor, "", AT_EMPTY_PATH);
  const std::lock_guard lock(live().mutex);
  if (identity) RunFiles::Notes::add_file(*identity, path.string());
}

void note_input_folder(const fs::path& folder) {
  const std::optional<Identity> identity = identity_of(folder);
  const std::lock_guard lock(live().mutex);
  if (identity) RunFiles::Notes::add_folder(*identity, folder.string());
}

void check_spares_inputs(const fs::path& target, const fs::path& named) {
  const std::lock_guard lock(live().mutex);
  if (const std::optional<Identity> own = identity_of(target)) {
    if (const std::string* file = RunFiles::Notes::find(*own, &RunFiles::Notes::files)) {
      fail("{}: this run reads it{}, so it is not written; name another file for the output", named.string(),
           *file == named.string() ? "" : fmt::format(" as {}", *file));
    }
  }
  for (fs::path folder = fs::absolute(target).parent_path();; folder = folder.parent_path()) {
    const std::optional<Identity> own = identity_of(folder);
    const std::string* input = own ? RunFiles::Notes::find(*own, &RunFiles::Notes::folders) : nullptr;
    if (input != nullptr) {
      fail(
          "{}: this run reads all files of the folder {}, so nothing is written into it; name another place for the "
          "output",
          named.string(), *input);
    }
    if (folder == folder.parent_path()) return;
  }
}

}  // namespace zoetrope
