// The norms by their formulas, in double, one row at a time: the last entry of every implementation list.
#pragma once

#include "kernels/norm/norm.h"

namespace zoetrope::kernels {

void layer_norm_reference(Stream& stream, const LayerNorm& args);
void rms_norm_rope_reference(Stream& stream, const RmsNormRope& args);
void rms_norm_reference(Stream& stream, const RmsNorm& args);

}  // namespace zoetrope::kernels
