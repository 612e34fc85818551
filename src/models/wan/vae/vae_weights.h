// The VAE's parameters ready to run: convolutions in the layout of the kernels, packed once per process, or per host
// where Weights are shared, for all ranks. The layers that use them are in vae_blocks.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/weights/weights.h"
#include "kernels/conv/frame_conv.h"
#include "models/wan/config.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::wan {

struct ConvWeights {
  std::shared_ptr<const kernels::FrameConvolution> op;
  std::string label;   // of its spans: "vae.conv 3×3×3 96→96"
  int64_t border = 1;  // that its inputs carry
};

struct ResidualWeights {
  Tensor gamma1, gamma2;  // [C] F32
  ConvWeights conv1, conv2;
  std::optional<ConvWeights> shortcut;
};

struct AttentionWeights {
  Tensor gamma;  // [C] F32
  ConvWeights to_q, to_kv, proj;
};

// Nearest ×2, then 3×3: each output pixel sees only 2×2 different inputs, so its place in the 2×2 cell gives one of
// four 2×2 convolutions on the small image, whose weights are sums of the 3×3 ones. 4 multiplications instead of 9,
// and the large image in between is never built.
struct UpsampleWeights {
  std::vector<ConvWeights> cells;  // (0, 0), (0, 1), (1, 0), (1, 1): row, column of the pixel in its cell
  std::vector<ConvWeights> time;   // none, or two: C → C for even and for odd frames
};

struct DownsampleWeights {
  ConvWeights spatial;
  std::optional<ConvWeights> time;
};

struct StageWeights {
  std::vector<ResidualWeights> resnets;
  std::optional<UpsampleWeights> up;  // at most one of the two
  std::optional<DownsampleWeights> down;
};

struct CoderWeights {
  CoderLayout layout;
  ConvWeights in;
  ResidualWeights middle_first;
  AttentionWeights middle_attention;
  ResidualWeights middle_last;
  std::vector<StageWeights> stages;
  Tensor gamma_out;  // [C] F32
  ConvWeights out;
  ConvWeights quant;
};

enum class VaeParts : uint8_t { kDecoder, kEncoder, kBoth };

// Of the first and the last convolution of a coder: kAuto leaves them direct. They take a hundredth of the time and are
// not worth larger errors in bf16.
kernels::ConvAlgorithm algorithm_of_ends(kernels::ConvAlgorithm algorithm);

struct VaeUse {
  VaeParts parts = VaeParts::kBoth;
  // F32 or BF16: of the activations between ops and of what the parameters are rounded to; sums inside an op are
  // float32.
  DType dtype = DType::kF32;
  kernels::ConvAlgorithm algorithm = kernels::ConvAlgorithm::kAuto;
  std::string implementation = {};  // of the kernels; empty: the fastest
};

// Immutable; safe to use from several ranks at once, each with its own stream.
class VaeWeights {
 public:
  // Packs on `threads` threads (0: all); `tick` is called after every weight and may throw to stop. Throws Error where
  // the config is not supported or a tensor is missing or has another shape.
  VaeWeights(const VaeConfig& config, std::shared_ptr<const io::Weights> source, VaeUse use = {}, int threads = 0,
             const std::function<void()>& tick = {});
  // Without others that share them.
  VaeWeights(const VaeConfig& config, std::shared_ptr<const io::WeightSource> source, VaeUse use = {})
      : VaeWeights(config, std::make_shared<const io::Weights>(std::move(source)), std::move(use)) {}

  const VaeConfig& config() const { return config_; }
  DType dtype() const { return use_.dtype; }
  const CoderWeights& encoder() const;  // must have been asked for
  const CoderWeights& decoder() const;

 private:
  VaeConfig config_;
  VaeUse use_;
  std::shared_ptr<const io::Weights> source_;  // owns what convolutions use
  std::unique_ptr<const CoderWeights> encoder_, decoder_;
};

}  // namespace zoetrope::wan
