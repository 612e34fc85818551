// A matrix that a file has in int8: its values are integers times the scale of their row, and rotated back by ConvRot
// where they were rotated (docs/spec/weights.md, section 4.4). Integer products take the integers as they are.
#pragma once

#include <cstdint>
#include <vector>

#include "base/index_range.h"

namespace zoetrope::io {

struct Int8Codes {
  int64_t rotation = 0;       // ConvRot's group; 0: not rotated
  std::vector<float> scales;  // of each row
};

inline void keep_rows(Int8Codes& codes, IndexRange rows) {
  codes.scales.assign(codes.scales.begin() + rows.begin, codes.scales.begin() + rows.end);
}

}  // namespace zoetrope::io
