#include "base/run_files.h"

#include <sys/stat.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace zoetrope {
namespace {

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

std::optional<Identity> identity_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return Identity(status.st_dev, status.st_ino);
}

}  // namespace

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

void note_input(const std::filesystem::path& path, uint64_t device, uint64_t inode) {
  const std::lock_guard lock(noted().mutex);
  if (noted().runs > 0) noted().files.emplace(Identity(device, inode), path.string());
}

void note_input(const std::filesystem::path& path) {
  if (const std::optional<Identity> identity = identity_of(path)) note_input(path, identity->first, identity->second);
}

void note_input_folder(const std::filesystem::path& folder) {
  const std::optional<Identity> identity = identity_of(folder);
  const std::lock_guard lock(noted().mutex);
  if (identity && noted().runs > 0) noted().folders.emplace(*identity, folder.string());
}

void check_spares_inputs(const std::filesystem::path& target, const std::filesystem::path& named) {
  const std::lock_guard lock(noted().mutex);
  if (const std::optional<Identity> own = identity_of(target)) {
    if (const auto file = noted().files.find(*own); file != noted().files.end()) {
      fail("{}: this run reads it{}, so it is not written; name another file for the output", named.string(),
           file->second == named.string() ? "" : fmt::format(" as {}", file->second));
    }
  }
  for (std::filesystem::path folder = std::filesystem::absolute(target).parent_path();; folder = folder.parent_path()) {
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
