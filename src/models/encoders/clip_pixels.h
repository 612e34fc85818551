// A picture as the CLIP tower sees it: resized, cropped, scaled to [0, 1] and normalised, in the order and with the
// roundings of the reference's image processor.
#pragma once

#include "zoetrope/tensor.h"

#include "models/encoders/config.h"

namespace zoetrope::encoders {

// image [H, W, 3] U8 of any size → out [3, h, w] F32, contiguous: config.crop, or what the resized picture has where
// nothing is cropped. Throws Error where that is not out's size.
void clip_pixels(const ImageProcessorConfig& config, const TensorView& image, const TensorView& out);

}  // namespace zoetrope::encoders
