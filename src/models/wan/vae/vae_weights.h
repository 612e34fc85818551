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

// A convolution over time as one 2-D convolution per frame that it sees, oldest first; the last one adds the bias.
struct TapWeights {
  std::vector<kernels::Convolution> taps;
  int64_t out_channels() const { return taps.back().problem().out_channels; }
};

struct ResidualWeights {
  TensorView gamma1, gamma2;  // [C] F32
  TapWeights conv1, conv2;
  std::optional<kernels::Convolution> shortcut;
};

struct AttentionWeights {
  TensorView gamma;  // [C] F32
  kernels::Convolution to_qkv, proj;
};

// Nearest ×2, then 3×3: each output pixel sees only 2×2 different inputs, so its place in the 2×2 cell gives one of
// four 2×2 convolutions on the small image, whose weights are sums of the 3×3 ones. 4 products instead of 9, and the
// large image in between is never made.
struct UpsampleWeights {
  std::vector<kernels::Convolution> cells;  // (0, 0), (0, 1), (1, 0), (1, 1): row, column of the pixel in its cell
  std::vector<TapWeights> time;             // none, or two: C → C for even and for odd frames
};

struct DownsampleWeights {
  kernels::Convolution spatial;
  std::optional<TapWeights> time;
};

struct StageWeights {
  std::vector<ResidualWeights> resnets;
  std::optional<UpsampleWeights> up;  // at most one of the two
  std::optional<DownsampleWeights> down;
};

struct CoderWeights {
  CoderLayout layout;
  TapWeights in;
  ResidualWeights middle_first;
  AttentionWeights middle_attention;
  ResidualWeights middle_last;
  std::vector<StageWeights> stages;
  TensorView gamma_out;  // [C] F32
  TapWeights out;
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
  std::shared_ptr<const io::Weights> source_;  // the gammas point into it
  std::vector<Tensor> plain_;                  // rearranged weights of convolutions that read them in place
  std::unique_ptr<const CoderWeights> encoder_, decoder_;
};

}  // namespace zoetrope::wan
