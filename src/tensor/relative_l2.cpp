#include "tensor/relative_l2.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace zoetrope {

double relative_l2(const TensorView& value, const TensorView& reference) {
  ZT_CHECK(value.shape() == reference.shape() && value.contiguous() && reference.contiguous(), "{} compared with {}",
           value.shape().to_string(), reference.shape().to_string());
  ZT_CHECK(value.dtype() == DType::kF32 && reference.dtype() == DType::kF32, "{} compared with {}",
           dtype_name(value.dtype()), dtype_name(reference.dtype()));
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < reference.size(); ++i) {
    const double expected = reference.data<float>()[i], error = value.data<float>()[i] - expected;
    difference += error * error;
    norm += expected * expected;
  }
  if (difference == 0) return 0;
  const double ratio = std::sqrt(difference / norm);
  return std::isfinite(ratio) ? ratio : std::numeric_limits<double>::infinity();
}

}  // namespace zoetrope
