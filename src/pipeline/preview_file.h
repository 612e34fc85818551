// Callbacks::preview as a file.
#pragma once

#include <filesystem>

#include "zoetrope/tensor.h"

namespace zoetrope::pipeline {

// frames [n, H, W, 3] U8 as an animated .gif, which replaces a file of that name when it is complete.
void write_preview(const Tensor& frames, const std::filesystem::path& file);

}  // namespace zoetrope::pipeline
