// What a VAE is made of, as data: names, channels and kernels of every layer, derived from the config (wan.md sections
// 4.1–4.3). The table of tensors, the loading of weights and the running of both halves all read this one description:
// the two generations of the VAE are two descriptions. Holds no weights and runs nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "models/wan/config.h"

namespace zoetrope::wan {

// NAME.weight and NAME.bias. Three axes of kernel are stored for a 3-D convolution, two for one that sees one frame.
struct ConvLayout {
  std::string name;
  int64_t in = 0;
  int64_t out = 0;
  std::array<int64_t, 3> kernel{1, 1, 1};  // t, h, w
  bool per_frame = false;                  // stored as [out, in, h, w]
  Shape weight_shape() const;
};

// NAME.gamma, one value a channel, stored with `trailing` axes of extent 1 behind it.
struct NormLayout {
  std::string name;
  int64_t channels = 0;
  int trailing = 3;
  Shape gamma_shape() const;
};

// x + conv2(SiLU(norm2(conv1(SiLU(norm1(x)))))), the sum with shortcut(x) where the channels change.
struct ResidualLayout {
  std::string name;
  NormLayout norm1, norm2;
  ConvLayout conv1, conv2;
  std::optional<ConvLayout> shortcut;
};

// Single-head attention over the positions of one frame, added to its input.
struct AttentionLayout {
  std::string name;
  NormLayout norm;
  ConvLayout to_qkv, proj;
};

// Half or twice the size; with `time`, half or twice the frames too.
enum class Scaling : uint8_t { kDown, kUp };
struct ResampleLayout {
  std::string name;
  Scaling scaling = Scaling::kDown;
  ConvLayout spatial;
  std::optional<ConvLayout> time;
};

// A way around a whole stage that has no parameters (wan.md section 4.3). Of the pictures before and after the stage
// one is larger: `time` frames of `space` × `space` pixels for a pixel of the other. Their values, channel by channel,
// are cut into groups, one for a channel of the smaller picture: on the way down it is the mean of its group, on the
// way up the whole group is its value.
struct ShortcutLayout {
  int64_t large = 0;  // channels of the larger picture
  int64_t small = 0;
  int64_t time = 1;
  int64_t space = 1;
  int64_t group() const { return large * time * space * space / small; }
  // The smaller picture's, of a channel of the larger one at this frame, row and column of its cell.
  int64_t small_channel(int64_t channel, int64_t frame, int64_t row, int64_t column) const {
    return (((channel * time + frame) * space + row) * space + column) / group();
  }
};

struct StageLayout {
  std::string name;  // of the golden tensor that shows the stage's output; empty where the parts have their own
  std::vector<ResidualLayout> resnets;
  std::optional<ResampleLayout> resample;
  std::optional<ShortcutLayout> shortcut;  // added to what the stage makes
};

// The encoder runs in, stages, middle, out, quant; the decoder quant, in, middle, stages, out.
struct CoderLayout {
  ConvLayout in;
  ResidualLayout middle_first;
  AttentionLayout middle_attention;
  ResidualLayout middle_last;
  std::vector<StageLayout> stages;
  NormLayout norm_out;
  ConvLayout out;
  ConvLayout quant;  // quant_conv or post_quant_conv, 1×1×1
};

// Both generations. Throw Error for a VAE that cannot be laid out so: lists of different lengths, channels that cannot
// be halved or grouped.
CoderLayout encoder_layout(const VaeConfig& config);
CoderLayout decoder_layout(const VaeConfig& config);

// Spatial, of the layers alone, whose input is patch_size times smaller: 8.
int64_t layer_factor(const VaeConfig& config);
// Channels of a pixel, where a patch has `channels`: 3.
int64_t pixel_channels(const VaeConfig& config, int64_t channels);

}  // namespace zoetrope::wan
