// Shared by the tests of the VAE: parameters in memory, a slow and plain VAE to compare with, and error measures.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/weights.h"
#include "models/wan/config.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::wan {

// Well-scaled parameters for a config: convolutions uniform with variance 1 / fan-in, gammas about 1, biases about 0.
class RandomSource : public io::WeightSource {
 public:
  RandomSource(const VaeConfig& config, uint64_t seed);
  bool contains(const std::string& name) const override { return tensors_.count(name) != 0; }
  std::vector<std::string> names() const override;
  io::TensorInfo info(const std::string& name) const override;
  std::string where(const std::string&) const override { return "random"; }
  TensorView mapped(const std::string& name) const override { return tensors_.at(name); }
  void read(const std::string& name, const TensorView& out) const override;

 private:
  std::map<std::string, Tensor> tensors_;
};

// Another source with one element of one tensor moved.
class PerturbedSource : public io::WeightSource {
 public:
  PerturbedSource(std::shared_ptr<const io::WeightSource> base, const std::string& name, float delta);
  bool contains(const std::string& name) const override { return base_->contains(name); }
  std::vector<std::string> names() const override { return base_->names(); }
  io::TensorInfo info(const std::string& name) const override { return base_->info(name); }
  std::string where(const std::string& name) const override { return base_->where(name); }
  TensorView mapped(const std::string& name) const override;
  void read(const std::string& name, const TensorView& out) const override;

 private:
  std::shared_ptr<const io::WeightSource> base_;
  std::string name_;
  Tensor moved_;
};

// A small VAE with nothing even about it.
VaeConfig small_config();

// Small ones of the second generation: as published but for the channels, and one without patches whose shortcuts copy
// and average other channels.
std::vector<VaeConfig> residual_configs();

// As published with TI2V-5B, without the statistics of its latents.
VaeConfig published_residual_config();

// Uniform in [−1, 1].
Tensor random_tensor(const Shape& shape, uint64_t seed);

struct Difference {
  double max_abs = 0;
  double relative_l2 = 0;
  double reference_max = 0;
};
Difference difference(const TensorView& value, const TensorView& reference);  // F32 or F64, any strides

// The whole clip at once, as section 4.4 of wan.md defines it: every convolution sums in `Real`, tap after tap, over
// the whole padded clip. latents [z, T, h, w] → video [F, H, W, 3] clamped; video [F, H, W, 3] → moments [2·z, T, h,
// w]. Results are F64 or F32. With `stored` BF16 every parameter and the result of every op is rounded to it: a model
// in that dtype as the reference implementation runs it, one op after the other.
template <typename Real>
Tensor reference_decode(const VaeConfig& config, const io::Weights& weights, const TensorView& latents,
                        DType stored = DType::kF32);
template <typename Real>
Tensor reference_encode(const VaeConfig& config, const io::Weights& weights, const TensorView& video,
                        DType stored = DType::kF32);

}  // namespace zoetrope::wan
