// What the name of a file says of its kind.
#pragma once

#include <filesystem>
#include <string>

namespace zoetrope::io {

// ".mp4" of clip.MP4: in lower case.
std::string extension_of(const std::filesystem::path& file);

// Named as the pictures that read_image() reads: .png, .jpg, .jpeg or .webp.
bool has_picture_name(const std::filesystem::path& file);

}  // namespace zoetrope::io
