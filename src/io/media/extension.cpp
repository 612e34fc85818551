#include "io/media/extension.h"

#include <algorithm>
#include <array>

#include "base/words.h"

namespace zoetrope::io {

std::string extension_of(const std::filesystem::path& file) { return lower_case(file.extension().string()); }

bool has_picture_name(const std::filesystem::path& file) {
  constexpr std::array<const char*, 4> kPictures = {".png", ".jpg", ".jpeg", ".webp"};
  return std::find(kPictures.begin(), kPictures.end(), extension_of(file)) != kPictures.end();
}

}  // namespace zoetrope::io
