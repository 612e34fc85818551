#include "base/atomic_folder.h"

#include <unistd.h>

#include <atomic>
#include <system_error>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"

namespace zoetrope {

namespace fs = std::filesystem;

AtomicFolder::AtomicFolder(const fs::path& final_path) : final_(final_path.lexically_normal()) {
  static std::atomic<uint64_t> counter{0};
  if (final_.filename().empty()) final_ = final_.parent_path();  // "folder/"
  std::error_code code;
  if (fs::exists(fs::symlink_status(final_, code))) {
    fail("{}: exists already; name a folder that does not", final_.string());
  }
  const fs::path parent = final_.has_parent_path() ? final_.parent_path() : fs::path(".");
  if (!fs::is_directory(parent, code)) {
    fail("{}: cannot be made: there is no folder {}", final_.string(), parent.string());
  }
  const fs::path hidden = parent / fmt::format(".zoetrope-{}-{}.partial", ::getpid(), counter++);
  make_folder(hidden);
  temporary_ = hidden;
}

AtomicFolder::~AtomicFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

void AtomicFolder::make_folder(const fs::path& path) {
  unfinished_.emplace_back(path.string(), UnfinishedPath::Kind::kFolder);
  std::error_code code;
  if (!fs::create_directory(path, code) && code) {
    fail("{}: cannot be made: {} (folder {})", final_.string(), code.message(), path.parent_path().string());
  }
}

fs::path AtomicFolder::file(const fs::path& name) {
  const fs::path path = temporary_ / name;
  if (!is_folder(path.parent_path())) make_folder(path.parent_path());
  unfinished_.emplace_back(path.string(), UnfinishedPath::Kind::kFile);
  return path;
}

void AtomicFolder::write(const fs::path& name, const std::string& text) { write_file(file(name), text); }

uint64_t AtomicFolder::free_bytes() const {
  std::error_code code;
  const fs::space_info space = fs::space(temporary_, code);
  return code ? UINT64_MAX : space.available;
}

void AtomicFolder::commit() {
  if (unfinished_files_removed())
    fail("{}: interrupted before it was complete, so it was not written", final_.string());
  std::error_code code;
  fs::rename(temporary_, final_, code);
  if (code) fail("{}: cannot be put in place: {}", final_.string(), code.message());
  temporary_.clear();
  unfinished_.clear();
}

}  // namespace zoetrope
