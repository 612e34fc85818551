// Shared by the tests of the VAE: parameters, small configs, the reference model, and error measures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/weights/weights.h"
#include "models/wan/config.h"
#include "models/wan/reference/vae.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::wan {

// Parameters that keep activations in scale, of one seed.
std::shared_ptr<const io::WeightSource> test_weights(const VaeConfig& config);

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

// What the reference model (models/wan/reference) makes of the whole clip, in sums of `Real`. With `stored` BF16 every
// parameter and the result of every op is rounded to it.
template <typename Real>
Tensor reference_decode(const VaeConfig& config, const std::shared_ptr<const io::WeightSource>& source,
                        const TensorView& latents, DType stored = DType::kF32) {
  ThreadTeam team(2);
  const reference::Rounding rounding = reference::rounding_of(stored);
  return reference::decode<Real>(config, reference::Parameters(source, team), latents, {rounding, rounding});
}
template <typename Real>
Tensor reference_encode(const VaeConfig& config, const std::shared_ptr<const io::WeightSource>& source,
                        const TensorView& video, DType stored = DType::kF32) {
  ThreadTeam team(2);
  const reference::Rounding rounding = reference::rounding_of(stored);
  return reference::encode<Real>(config, reference::Parameters(source, team), video, {rounding, rounding});
}

}  // namespace zoetrope::wan
