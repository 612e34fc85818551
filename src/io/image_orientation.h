// Which way up a stored picture is to be seen. Private to the module.
#pragma once

#include <string_view>

#include "zoetrope/tensor.h"

namespace zoetrope::io {

// EXIF's number for it, 1 to 8, from a TIFF structure as EXIF stores it; 1, as stored, where it holds none.
int exif_orientation(std::string_view tiff);

// image [H, W, 3] U8, stored with this orientation, as it is to be seen.
Tensor upright(Tensor image, int orientation);

}  // namespace zoetrope::io
