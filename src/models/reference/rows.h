// What the float64 model computes with: rows in float64, and parameters read one at a time, rounded as the model under
// test holds them. Slow, small and simple on purpose; shares no code with the kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/thread_team.h"
#include "io/weights/weights.h"

namespace zoetrope::reference {

// `features` × `rows` values, the rows of one feature side by side: sums of products run along the rows.
struct Rows {
  Rows() = default;
  Rows(int64_t features_, int64_t rows_)
      : features(features_), rows(rows_), values(static_cast<size_t>(features_ * rows_)) {}
  double* feature(int64_t f) { return values.data() + f * rows; }
  const double* feature(int64_t f) const { return values.data() + f * rows; }

  int64_t features = 0, rows = 0;
  std::vector<double> values;
};

// [rows, features] F32 or BF16, contiguous; leading extents count as rows.
Rows rows_of(const TensorView& tensor);

// Some of the rows of x, in this order.
Rows rows_at(const Rows& x, const std::vector<int64_t>& rows);

// ‖a − expected‖ / ‖expected‖ over all values.
double relative_l2(const Rows& a, const Rows& expected);

enum class Rounding : uint8_t { kFloat32, kBFloat16 };
inline Rounding rounding_of(DType dtype) { return dtype == DType::kBF16 ? Rounding::kBFloat16 : Rounding::kFloat32; }
float rounded(float value, Rounding rounding);

class Parameters {
 public:
  // `on_read`, if given, is told the name of each tensor that is read.
  Parameters(std::shared_ptr<const io::WeightSource> source, ThreadTeam& team,
             std::function<void(const std::string&)> on_read = {})
      : source_(std::move(source)), team_(team), on_read_(std::move(on_read)) {}

  std::vector<float> read(const std::string& name, Rounding rounding) const;

  // w·x + b: tensors PREFIX.weight, whose first extent is that of the result, and PREFIX.bias where there is one.
  Rows linear(const std::string& prefix, const Rows& x, Rounding rounding) const;

  ThreadTeam& team() const { return team_; }

 private:
  std::shared_ptr<const io::WeightSource> source_;
  ThreadTeam& team_;
  std::function<void(const std::string&)> on_read_;
};

// softmax(scale·q·kᵀ + bias)·v, head by head; the features of a head are adjacent. bias(head, query, key) may be
// empty.
struct Attention {
  const Rows& q;
  const Rows& k;
  const Rows& v;
  int64_t heads;
  double scale;
  std::function<double(int64_t head, int64_t query, int64_t key)> bias;
};
Rows attend(const Attention& attention, ThreadTeam& team);

void add_to(Rows& x, const Rows& branch);

// x / √(mean of x² over all features + eps) · weight, row by row.
Rows rms_norm(const Rows& x, const std::vector<float>& weight, double eps);

double gelu_tanh(double x);
double silu(double x);

}  // namespace zoetrope::reference
