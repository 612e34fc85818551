#include "io/extension.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace zoetrope::io {

std::string extension_of(const std::filesystem::path& file) {
  std::string extension = file.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

bool has_picture_name(const std::filesystem::path& file) {
  constexpr std::array<const char*, 4> kPictures = {".png", ".jpg", ".jpeg", ".webp"};
  return std::find(kPictures.begin(), kPictures.end(), extension_of(file)) != kPictures.end();
}

}  // namespace zoetrope::io
