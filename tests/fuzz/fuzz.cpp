#include "fuzz.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"

namespace zoetrope::fuzz {
namespace {

namespace fs = std::filesystem;

class Scratch {
 public:
  Scratch() {
    std::string pattern = (fs::temp_directory_path() / "zoetrope_fuzz_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) fail("{}: no folder can be made there", pattern);
    path_ = pattern;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

fs::path folder() {
  static const Scratch scratch;
  return scratch.path();
}

fs::path write(const std::string& name, std::string_view bytes) {
  const fs::path path = folder() / name;
  fs::remove(path);  // a file that is cut to nothing is written to the disk when it is closed, on ext4
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) fail("{}: cannot be written", path.string());
  return path;
}

void touch(const void* data, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(data);
  unsigned sum = 0;
  for (size_t i = 0; i < bytes; ++i) sum += from[i];
  volatile unsigned seen = sum;  // is not left out
  static_cast<void>(seen);
}

bool reads_past_header(const std::string& bytes) {
  try {
    kTarget.read(bytes);
    return true;
  } catch (const Error& error) {
    const std::string_view said = error.what();
    return std::none_of(kTarget.header_errors.begin(), kTarget.header_errors.end(),
                        [&](std::string_view part) { return said.find(part) != said.npos; });
  }
}

}  // namespace zoetrope::fuzz
