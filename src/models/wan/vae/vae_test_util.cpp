#include "models/wan/vae/vae_test_util.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "io/weights/random_weights.h"
#include "models/wan/tensor_tables.h"

namespace zoetrope::wan {
namespace {

double value_at(const TensorView& x, int64_t index) {
  int64_t offset = 0;
  for (int axis = x.rank() - 1; axis >= 0; --axis) {
    offset += index % x.extent(axis) * x.stride(axis);
    index /= x.extent(axis);
  }
  return x.dtype() == DType::kF64 ? x.data<double>()[offset] : static_cast<double>(x.data<float>()[offset]);
}

}  // namespace

std::shared_ptr<const io::WeightSource> test_weights(const VaeConfig& config) {
  return io::random_weights(vae_tensors(config), "vae", 5);
}

PerturbedSource::PerturbedSource(std::shared_ptr<const io::WeightSource> base, const std::string& name, float delta)
    : base_(std::move(base)), name_(name), moved_(DType::kF32, base_->info(name).shape) {
  base_->read(name, moved_);
  moved_.data<float>()[0] += delta;
}

TensorView PerturbedSource::mapped(const std::string& name) const {
  return name == name_ ? moved_.view() : base_->mapped(name);
}

void PerturbedSource::read(const std::string& name, const TensorView& out) const {
  if (name != name_) return base_->read(name, out);
  ZT_CHECK(out.dtype() == DType::kF32);
  std::memcpy(out.raw(), moved_.view().raw(), out.bytes());
}

VaeConfig small_config() {
  VaeConfig config;
  config.base_dim = config.decoder_base_dim = 5;
  config.z_dim = 3;
  config.dim_mult = {1, 2, 2};
  config.num_res_blocks = 1;
  config.temporal_downsample = {true, true};
  config.latents_mean = {0.1f, -0.2f, 0.3f};
  config.latents_std = {1.5f, 0.7f, 2.0f};
  config.scale_factor_spatial = 4;
  return config;
}

std::vector<VaeConfig> residual_configs() {
  VaeConfig published = small_config();
  published.is_residual = true;
  published.patch_size = 2;
  published.in_channels = published.out_channels = 12;
  published.decoder_base_dim = 3;
  published.dim_mult = {1, 2, 4, 4};
  published.temporal_downsample = {false, true, true};
  published.scale_factor_spatial = 16;
  VaeConfig other = published;  // more channels on the way up, fewer where sizes stay
  other.decoder_base_dim = 5;
  other.dim_mult = {1, 4, 2};
  other.temporal_downsample = {true, true};
  other.num_res_blocks = 2;
  other.patch_size = 1;
  other.in_channels = other.out_channels = 3;
  other.scale_factor_spatial = 4;
  return {published, other};
}

VaeConfig published_residual_config() {
  VaeConfig config;
  config.base_dim = 160;
  config.decoder_base_dim = 256;
  config.z_dim = 48;
  config.is_residual = true;
  config.in_channels = config.out_channels = 12;
  config.patch_size = 2;
  config.scale_factor_spatial = 16;
  return config;
}

Tensor random_tensor(const Shape& shape, uint64_t seed) {
  Tensor tensor(DType::kF32, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const uint64_t bits = split_mix((seed << 32) + static_cast<uint64_t>(i));
    tensor.data<float>()[i] = static_cast<float>(static_cast<double>(bits >> 11) * 0x1p-52 - 1);
  }
  return tensor;
}

Difference difference(const TensorView& value, const TensorView& reference) {
  ZT_CHECK(value.shape() == reference.shape(), "{} compared with {}", value.shape().to_string(),
           reference.shape().to_string());
  Difference result;
  double error = 0, norm = 0;
  for (int64_t i = 0; i < value.size(); ++i) {
    const double b = value_at(reference, i), d = value_at(value, i) - b;
    error += d * d;
    norm += b * b;
    // Written so that NaN is the largest.
    if (!(std::abs(d) <= result.max_abs)) result.max_abs = std::abs(d);
    result.reference_max = std::max(result.reference_max, std::abs(b));
  }
  result.relative_l2 = std::sqrt(error / norm);
  return result;
}

}  // namespace zoetrope::wan
