#include "tensor/half.h"

#include <immintrin.h>

namespace zoetrope {

float to_float(Float16 value) { return _cvtsh_ss(value.bits); }

template <>
Float16 from_float<Float16>(float value) {
  return {static_cast<uint16_t>(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
}

}  // namespace zoetrope
