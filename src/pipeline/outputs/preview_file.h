// Callbacks::preview as a file.
#pragma once

#include <filesystem>
#include <string>

#include "zoetrope/tensor.h"

namespace zoetrope::pipeline {

// Of a video: clip.mp4 → clip.preview.gif; of a folder likewise.
std::filesystem::path preview_file(const std::string& output);

// frames [n, H, W, 3] U8 as an animated .gif, which replaces a file of that name when it is complete.
void write_preview(const Tensor& frames, const std::filesystem::path& file);

}  // namespace zoetrope::pipeline
