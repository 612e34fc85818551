// A decoded picture's planes as packed RGB, by the formulas of the reference's libraries: upsampling of chroma and
// YCbCr → RGB as libjpeg (jdsample.c, jdcolor.c), the rest as Pillow's convert("RGB"). Private to the room.
#pragma once

#include <filesystem>

#include "zoetrope/tensor.h"

#include "io/ffmpeg.h"

namespace zoetrope::io {

// frame of a PNG or JPEG decoder → [H, W, 3] U8. `path` is for errors.
Tensor planes_to_rgb(const AVFrame& frame, const std::filesystem::path& path);

}  // namespace zoetrope::io
