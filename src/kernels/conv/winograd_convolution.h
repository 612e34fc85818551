// 3×3 convolutions of stride 1 by Winograd's F(2×2, 3×3) in every frame: 16 products per 2×2 outputs, input channel and
// frame instead of 36. A strip of tiles is transformed, multiplied with the register tiles of the direct convolution,
// transformed back and finished while it is in the cache. For frame_conv.cpp only.
//
// Where bf16 is multiplied, transformed inputs and weights are rounded to it: the error is that of two roundings, grown
// by the transforms (docs/cpu.md has figures). Products of float32 round nothing, also those of bf16 frames.
// Transformed weights of these would take up to 32/9 as much memory, so each call makes them anew, in the stream's
// scratch.
#pragma once

#include <atomic>
#include <vector>

#include "base/index_range.h"
#include "kernels/conv/direct.h"
#include "kernels/conv/epilogue.h"
#include "kernels/conv/frame_conv.h"
#include "kernels/implementation.h"

namespace zoetrope::kernels {

class WinogradConvolution {
 public:
  static Refusal refusal(const FrameConvProblem& problem, const DirectKernels& kernels);
  static int64_t weight_bytes(const FrameConvProblem& problem, const DirectKernels& kernels);

  WinogradConvolution(const FrameConvProblem& problem, const DirectKernels& kernels, const TensorView& bias);
  // As FrameConvolution's.
  size_t weight_bytes() const { return static_cast<size_t>(weight_bytes(problem_, kernels_)); }
  int64_t weight_step() const { return int64_t{kernels_.vectors} * kernels_.lanes; }
  void pack(const TensorView& weight, int64_t first, std::byte* packed) const;
  void use(const std::byte* packed) { packed_ = packed; }
  void run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const;

 private:
  struct Plan;  // of one call
  struct Item;  // a row of tiles, or a part of one
  struct Block {
    int64_t column;  // first output channel
    int vectors;     // of the register tile
    // Offset in elements; [point][frame][k of the channels, in pairs][output channel][of the pair].
    int64_t weights;
  };

  template <typename Element>
  void pack_block(const TensorView& weight, int64_t first, const Block& block, Element* to) const;
  // [frame][channel][tap][output channel], of weights that calls transform.
  template <typename Element>
  void pack_taps(const TensorView& weight, int64_t first, const Block& block, Element* to) const;
  int64_t taps_of(const Block& block) const;  // their offset in elements
  const std::byte* point_weights(Stream& stream) const;
  Plan plan(std::span<const TensorView> inputs, const FrameConvOutput& out) const;
  Item item(const Plan& plan, int64_t index) const;
  void run_item(const Plan& plan, const Item& item, std::byte* scratch) const;
  void transform_inputs(const Plan& plan, const Item& item, int64_t frame, std::byte* to) const;
  void multiply(const Plan& plan, const Item& item, std::byte* scratch) const;
  int64_t terms() const { return problem_.frames * problem_.in_channels; }  // of a sum at a point

  FrameConvProblem problem_;
  const DirectKernels& kernels_;
  ConvEpilogue epilogue_;
  int64_t element_ = 0;     // bytes of a value that is multiplied
  int64_t input_ = 0;       // bytes of one in the frames
  int64_t most_tiles_ = 1;  // of an item
  std::vector<Block> blocks_;
  const std::byte* packed_ = nullptr;
};

}  // namespace zoetrope::kernels
