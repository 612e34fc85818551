#include "base/run_files.h"

#include <sys/stat.h>

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

using Identity = std::pair<uint64_t, uint64_t>;  // device, inode

struct LiveRuns {
  std::mutex mutex;
  std::vector<RunFiles*> runs;  // the latest last
};

LiveRuns& live() {
  static LiveRuns all;
  return all;
}

std::optional<Identity> identity_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return Identity(status.st_dev, status.st_ino);
}

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
    if (!live().runs.empty()) live().runs.back()->notes_->files.insert_or_assign(identity, path);
  }
  static void add_folder(const Identity& identity, const std::string& path) {
    if (!live().runs.empty()) live().runs.back()->notes_->folders.insert_or_assign(identity, path);
  }
  // An input that is gone is not spared: a file system gives its inode to the next file.
  static const std::string* find(const Identity& identity, std::map<Identity, std::string> Notes::*kind) {
    for (const RunFiles* run : live().runs) {
      const auto& known = (*run->notes_).*kind;
      const auto at = known.find(identity);
      if (at != known.end() && identity_of(at->second) == identity) return &at->second;
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

void note_input(const fs::path& path, uint64_t device, uint64_t inode) {
  const std::lock_guard lock(live().mutex);
  RunFiles::Notes::add_file(Identity(device, inode), path.string());
}

void note_input(const fs::path& path) {
  if (const std::optional<Identity> identity = identity_of(path)) note_input(path, identity->first, identity->second);
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
