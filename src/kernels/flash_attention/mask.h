// Which keys of a block may be attended to. Shared by the reference, the scalar implementation and the packing of the
// vector ones, so that a mask means the same everywhere. Holds positions only, never touches keys or values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/flash_attention/flash_attention.h"

namespace zoetrope::kernels {

class Mask {
 public:
  Mask(const FlashProblem& problem, const KeyBlock& block) : kind_(problem.mask), block_(block) {}

  // True where key `j` of the block (local index) is valid for batch entry `b`.
  bool valid(int64_t b, int64_t j) const {
    const int64_t position = block_.first_key + j;
    switch (kind_) {
      case MaskKind::kNone:
        return true;
      case MaskKind::kKeyLengths:
        return position < block_.key_lengths[static_cast<size_t>(b)];
      case MaskKind::kKeyMask:
        return mask_row(b)[position * block_.key_mask.stride(1)] != 0;
    }
    return true;
  }

  // Keys [0, prefix) of the block are valid and no other, where the mask's kind makes that so; −1 where it does not.
  int64_t prefix(int64_t b) const {
    const int64_t keys = block_.k.extent(1);
    if (kind_ == MaskKind::kNone) return keys;
    if (kind_ == MaskKind::kKeyMask) return -1;
    return std::clamp<int64_t>(block_.key_lengths[static_cast<size_t>(b)] - block_.first_key, 0, keys);
  }

 private:
  const uint8_t* mask_row(int64_t b) const {
    return block_.key_mask.data<const uint8_t>() + b * block_.key_mask.stride(0);
  }

  MaskKind kind_;
  const KeyBlock& block_;
};

}  // namespace zoetrope::kernels
