#include "base/run_files.h"

#include <sys/stat.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;

using Identity = std::pair<uint64_t, uint64_t>;  // device, inode

struct Noted {
  std::mutex mutex;
  int runs = 0;
  std::map<Identity, std::string> files;
  std::map<Identity, std::string> folders;
};

Noted& noted() {
  static Noted all;
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

std::string if_exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? path : "";
}

void check_files_differ(std::initializer_list<NamedFile> files) {
  for (const NamedFile* file = files.begin(); file != files.end(); ++file) {
    for (const NamedFile* other = files.begin(); other != file; ++other) {
      if (file->path.empty() || other->path.empty() || !same_file(file->path, other->path)) continue;
      fail("{}={} is the same file as {}={}; each needs a file of its own", file->key, file->path, other->key,
           other->path);
    }
  }
}

RunFiles::RunFiles() {
  const std::lock_guard lock(noted().mutex);
  ++noted().runs;
}

RunFiles::~RunFiles() {
  const std::lock_guard lock(noted().mutex);
  if (--noted().runs > 0) return;
  noted().files.clear();
  noted().folders.clear();
}

void note_input(const fs::path& path, uint64_t device, uint64_t inode) {
  const std::lock_guard lock(noted().mutex);
  if (noted().runs > 0) noted().files.emplace(Identity(device, inode), path.string());
}

void note_input(const fs::path& path) {
  if (const std::optional<Identity> identity = identity_of(path)) note_input(path, identity->first, identity->second);
}

void note_input_folder(const fs::path& folder) {
  const std::optional<Identity> identity = identity_of(folder);
  const std::lock_guard lock(noted().mutex);
  if (identity && noted().runs > 0) noted().folders.emplace(*identity, folder.string());
}

void check_spares_inputs(const fs::path& target, const fs::path& named) {
  const std::lock_guard lock(noted().mutex);
  if (const std::optional<Identity> own = identity_of(target)) {
    if (const auto file = noted().files.find(*own); file != noted().files.end()) {
      fail("{}: this run reads it{}, so it is not written; name another file for the output", named.string(),
           file->second == named.string() ? "" : fmt::format(" as {}", file->second));
    }
  }
  for (fs::path folder = fs::absolute(target).parent_path();; folder = folder.parent_path()) {
    const std::optional<Identity> own = identity_of(folder);
    const auto input = own ? noted().folders.find(*own) : noted().folders.end();
    if (input != noted().folders.end()) {
      fail(
          "{}: this run reads all files of the folder {}, so nothing is written into it; name another place for the "
          "output",
          named.string(), input->second);
    }
    if (folder == folder.parent_path()) return;
  }
}

}  // namespace zoetrope
