#include "models/reference/rows.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "tensor/half.h"

namespace zoetrope::reference {
namespace {

constexpr int64_t kChunk = 8;  // rows that are multiplied at once: two registers of float64, compile-time so that the
                               // loop over them becomes vector instructions

// sum[r] = Σ w[k]·x[k][r] for a chunk of rows.
void multiply(const float* w, const Rows& x, int64_t first, int64_t count, double* out) {
  double sum[kChunk] = {};
  if (count == kChunk) {
    for (int64_t k = 0; k < x.features; ++k) {
      const double* row = x.feature(k) + first;
      const double weight = static_cast<double>(w[k]);
      for (int64_t r = 0; r < kChunk; ++r) sum[r] += weight * row[r];
    }
  } else {
    for (int64_t k = 0; k < x.features; ++k) {
      const double* row = x.feature(k) + first;
      for (int64_t r = 0; r < count; ++r) sum[r] += static_cast<double>(w[k]) * row[r];
    }
  }
  for (int64_t r = 0; r < count; ++r) out[r] = sum[r];
}

}  // namespace

Rows rows_of(const TensorView& tensor) {
  ZT_CHECK(tensor.contiguous() && (tensor.dtype() == DType::kF32 || tensor.dtype() == DType::kBF16));
  const int64_t features = tensor.extent(-1);
  Rows out(features, tensor.size() / features);
  for (int64_t r = 0; r < out.rows; ++r) {
    for (int64_t f = 0; f < features; ++f) {
      const int64_t at = r * features + f;
      const float value =
          tensor.dtype() == DType::kF32 ? tensor.data<float>()[at] : to_float(tensor.data<BFloat16>()[at]);
      out.feature(f)[r] = static_cast<double>(value);
    }
  }
  return out;
}

Rows rows_at(const Rows& x, const std::vector<int64_t>& rows) {
  Rows out(x.features, static_cast<int64_t>(rows.size()));
  for (int64_t f = 0; f < x.features; ++f)
    for (int64_t r = 0; r < out.rows; ++r) out.feature(f)[r] = x.feature(f)[rows[static_cast<size_t>(r)]];
  return out;
}

double relative_l2(const Rows& a, const Rows& expected) {
  ZT_CHECK(a.features == expected.features && a.rows == expected.rows);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double error = a.values[i] - expected.values[i];
    difference += error * error;
    norm += expected.values[i] * expected.values[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

float rounded(float value, Rounding rounding) {
  return rounding == Rounding::kBFloat16 ? to_float(to_bfloat16(value)) : value;
}

std::vector<float> Parameters::read(const std::string& name, Rounding rounding) const {
  if (on_read_) on_read_(name);
  const Shape shape = source_->info(name).shape;
  std::vector<float> values(static_cast<size_t>(shape.size()));
  source_->read(name, TensorView(values.data(), DType::kF32, shape));
  source_->release(name);  // what the check has read is no memory of the forwards that follow
  for (float& value : values) value = rounded(value, rounding);
  return values;
}

Rows Parameters::linear(const std::string& prefix, const Rows& x, Rounding rounding) const {
  const std::vector<float> weight = read(prefix + ".weight", rounding);
  std::vector<float> bias;
  if (source_->contains(prefix + ".bias")) bias = read(prefix + ".bias", rounding);
  const auto out_features = static_cast<int64_t>(weight.size()) / x.features;
  ZT_CHECK(out_features * x.features == static_cast<int64_t>(weight.size()), "{}", prefix);
  Rows out(out_features, x.rows);
  team_.parallel_for(out_features, 16, [&](IndexRange range, int) {
    for (int64_t o = range.begin; o < range.end; ++o) {
      double* to = out.feature(o);
      for (int64_t first = 0; first < x.rows; first += kChunk) {
        multiply(weight.data() + o * x.features, x, first, std::min(kChunk, x.rows - first), to + first);
      }
      if (bias.empty()) continue;
      for (int64_t r = 0; r < x.rows; ++r) to[r] += static_cast<double>(bias[static_cast<size_t>(o)]);
    }
  });
  return out;
}

Rows attend(const Attention& attention, ThreadTeam& team) {
  const Rows &q = attention.q, &k = attention.k, &v = attention.v;
  const int64_t head_dim = q.features / attention.heads;
  Rows out(q.features, q.rows);
  team.parallel_for(attention.heads * q.rows, 1, [&](IndexRange range, int) {
    std::vector<double> p(static_cast<size_t>(k.rows));
    for (int64_t item = range.begin; item < range.end; ++item) {
      const int64_t head = item / q.rows, i = item % q.rows, begin = head * head_dim, end = begin + head_dim;
      std::fill(p.begin(), p.end(), 0.0);
      for (int64_t f = begin; f < end; ++f) {
        const double value = q.feature(f)[i];
        const double* keys = k.feature(f);
        for (int64_t j = 0; j < k.rows; ++j) p[static_cast<size_t>(j)] += value * keys[j];
      }
      for (int64_t j = 0; j < k.rows; ++j) {
        double& score = p[static_cast<size_t>(j)];
        score = attention.scale * score + (attention.bias ? attention.bias(head, i, j) : 0);
      }
      const double most = *std::max_element(p.begin(), p.end());
      double sum = 0;
      for (double& value : p) sum += value = std::exp(value - most);
      for (int64_t f = begin; f < end; ++f) {
        double value = 0;
        for (int64_t j = 0; j < k.rows; ++j) value += p[static_cast<size_t>(j)] * v.feature(f)[j];
        out.feature(f)[i] = value / sum;
      }
    }
  });
  return out;
}

void add_to(Rows& x, const Rows& branch) {
  ZT_CHECK(x.values.size() == branch.values.size());
  for (size_t i = 0; i < x.values.size(); ++i) x.values[i] += branch.values[i];
}

Rows rms_norm(const Rows& x, const std::vector<float>& weight, double eps) {
  Rows out = x;
  for (int64_t r = 0; r < x.rows; ++r) {
    double square = 0;
    for (int64_t f = 0; f < x.features; ++f) square += x.feature(f)[r] * x.feature(f)[r];
    const double scale = 1 / std::sqrt(square / static_cast<double>(x.features) + eps);
    for (int64_t f = 0; f < x.features; ++f) out.feature(f)[r] *= scale * weight[static_cast<size_t>(f)];
  }
  return out;
}

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double silu(double x) { return x / (1 + std::exp(-x)); }

}  // namespace zoetrope::reference
