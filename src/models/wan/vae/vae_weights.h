// The VAE's parameters ready to run: convolutions in the layout of the kernels, made once a process and shared by every
// rank and every use. What is done with them is vae_blocks.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/weights.h"
#include "kernels/conv/conv.h"
#include "models/wan/config.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::wan {

struct ResidualWeights {
  TensorView gamma1, gamma2;  // [C] F32
  kernels::Convolution conv1, conv2;
  std::optional<kernels::Convolution> shortcut;
};

struct AttentionWeights {
  TensorView gamma;  // [C] F32
  kernels::Convolution to_qkv, proj;
};

struct ResampleWeights {
  kernels::Convolution spatial;
  // Down: one, C → C with stride 2 in time. Up: two, C → C each, for even and odd frames, so that each writes whole
  // frames (the checkpoint stacks them as C → 2C).
  std::vector<kernels::Convolution> time;
};

struct StageWeights {
  std::vector<ResidualWeights> resnets;
  std::optional<ResampleWeights> resample;
};

struct CoderWeights {
  CoderLayout layout;
  kernels::Convolution in;
  ResidualWeights middle_first;
  AttentionWeights middle_attention;
  ResidualWeights middle_last;
  std::vector<StageWeights> stages;
  TensorView gamma_out;  // [C] F32
  kernels::Convolution out;
  kernels::Convolution quant;
};

enum class VaeParts : uint8_t { kDecoder, kEncoder, kBoth };

// Immutable; safe to use from several ranks at once, each with its own stream.
class VaeWeights {
 public:
  // Throws Error where the config is not supported or a tensor is missing or has another shape.
  VaeWeights(const VaeConfig& config, std::shared_ptr<const io::Weights> weights, VaeParts parts = VaeParts::kBoth);

  const VaeConfig& config() const { return config_; }
  const CoderWeights& encoder() const;  // must have been asked for
  const CoderWeights& decoder() const;

 private:
  VaeConfig config_;
  std::shared_ptr<const io::Weights> source_;  // gammas and plain weights point into it
  std::unique_ptr<const CoderWeights> encoder_, decoder_;
};

}  // namespace zoetrope::wan
