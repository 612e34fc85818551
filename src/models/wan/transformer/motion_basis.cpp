#include "models/wan/transformer/motion_basis.h"

#include <cmath>
#include <vector>

#include "base/error.h"

namespace zoetrope::wan {

Tensor motion_basis(const TensorView& weight) {
  const int64_t rows = weight.extent(0), columns = weight.extent(1);
  ZT_CHECK(weight.dtype() == DType::kF32 && weight.contiguous() && rows >= columns);
  constexpr float kOffset = 1e-8f;
  std::vector<double> a(static_cast<size_t>(rows * columns)), q(a.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(weight.data<float>()[i] + kOffset);
  const auto at = [columns](std::vector<double>& matrix, int64_t row, int64_t column) -> double& {
    return matrix[static_cast<size_t>(row * columns + column)];
  };
  // (1 − factor·v·vᵀ)·matrix below row `first`; v is column `first` of a below that row.
  const auto reflect = [&](std::vector<double>& matrix, int64_t first, double factor, int64_t from) {
    for (int64_t column = from; column < columns; ++column) {
      double sum = 0;
      for (int64_t row = first; row < rows; ++row) sum += at(a, row, first) * at(matrix, row, column);
      for (int64_t row = first; row < rows; ++row) at(matrix, row, column) -= factor * sum * at(a, row, first);
    }
  };
  std::vector<double> factors;
  for (int64_t j = 0; j < columns; ++j) {
    double square = 0;
    for (int64_t row = j; row < rows; ++row) square += at(a, row, j) * at(a, row, j);
    // x becomes β·e₁ with β = −sign(x₀)·‖x‖; v = x − β·e₁ is kept in place of x.
    at(a, j, j) += std::copysign(std::sqrt(square), at(a, j, j) < 0 ? -1.0 : 1.0);
    double length = 0;
    for (int64_t row = j; row < rows; ++row) length += at(a, row, j) * at(a, row, j);
    factors.push_back(length > 0 ? 2 / length : 0);
    reflect(a, j, factors.back(), j + 1);
  }
  for (int64_t j = 0; j < columns; ++j) at(q, j, j) = 1;
  for (int64_t j = columns - 1; j >= 0; --j) reflect(q, j, factors[static_cast<size_t>(j)], 0);
  Tensor basis = Tensor::uninitialized(DType::kF32, {rows, columns});
  for (size_t i = 0; i < q.size(); ++i) basis.data<float>()[i] = static_cast<float>(q[i]);
  return basis;
}

}  // namespace zoetrope::wan
