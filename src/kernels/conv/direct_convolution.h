// The direct convolution: packs weights for the register tiles of one instruction set and computes tiles in an order
// that uses the caches. For frame_conv.cpp only.
#pragma once

#include <atomic>
#include <vector>

#include "base/index_range.h"
#include "kernels/conv/direct.h"
#include "kernels/conv/epilogue.h"
#include "kernels/conv/frame_conv.h"
#include "kernels/implementation.h"

namespace zoetrope::kernels {

class DirectConvolution {
 public:
  // Why these kernels cannot do a problem, if they cannot.
  static Refusal refusal(const FrameConvProblem& problem, const DirectKernels& kernels);

  DirectConvolution(const FrameConvProblem& problem, const DirectKernels& kernels, const TensorView& bias);
  // As FrameConvolution's.
  size_t weight_bytes() const { return static_cast<size_t>(weights_) * dtype_size(stored_dtype_); }
  int64_t weight_step() const { return narrow_ ? problem_.out_channels : int64_t{kernels_.vectors} * kernels_.lanes; }
  void pack(const TensorView& weight, int64_t first, std::byte* packed) const;
  void use(const std::byte* packed) { packed_ = packed; }
  void run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const;

 private:
  struct Plan;  // of one call
  struct Item;  // rows × columns of it
  struct Sums;  // of an item
  class OverlappedWork;

  struct Block {
    int64_t column;       // first output channel
    int vectors;          // of the tile
    int64_t weights;      // offset in bytes as tiles read them
    int64_t frame_bytes;  // the same
  };

  template <typename Element>
  void pack_block(const TensorView& weight, int64_t first, const Block& block, Element* to) const;
  template <typename Element>
  void pack_narrow(const TensorView& weight, Element* to) const;
  int64_t place(int64_t frame, int64_t row, int64_t column, int64_t channel, int64_t out, int64_t width) const;
  // The inputs that `rows` rows or columns of output need.
  int64_t input_rows(int64_t rows) const { return (rows - 1) * problem_.stride + problem_.kernel[0]; }
  int64_t input_columns(int64_t columns) const { return (columns - 1) * problem_.stride + problem_.kernel[1]; }
  // Where tiles cannot multiply the frames as they are.
  bool always_copies() const { return widens_ || copied_pixel_ != problem_.in_channels; }
  const std::byte* tile_weights(Stream& stream) const;
  Plan plan(std::span<const TensorView> inputs, const FrameConvOutput& out) const;
  Item item(const Plan& plan, int64_t index) const;
  void run_item(const Plan& plan, const Item& item, std::byte* scratch) const;
  void run_items(const Plan& plan, int64_t items, std::atomic<int64_t>& next, std::byte* scratch) const;
  void copy_inputs(const Plan& plan, const Item& item, std::byte* copy, int64_t first, int64_t last) const;
  int64_t copied_row(const Item& item) const;  // elements
  int64_t overlap(const Item& item) const;     // pixels
  int64_t runs_of(const Plan& plan, const Item& item, int64_t row, IndexRange frames, const std::byte* copy,
                  const std::byte** runs) const;
  void sum_taps(const Plan& plan, const Item& item, const Sums& sums) const;
  void finish_pixels(const Plan& plan, const Item& item, float* acc, IndexRange pixels) const;

  FrameConvProblem problem_;
  const DirectKernels& kernels_;
  ConvEpilogue epilogue_;
  bool narrow_ = false;
  bool widens_ = false;               // bf16 inputs, products in float
  DType stored_dtype_ = DType::kF32;  // of packed_
  DType tile_dtype_ = DType::kF32;    // of the weights that tiles read
  int64_t channels_ = 0;              // of inputs, as tiles multiply them
  int64_t copied_pixel_ = 0;          // elements between columns of copied inputs
  int64_t run_length_ = 0;            // elements
  int64_t columns_ = 0;               // output channels rounded up to vectors
  int64_t chunk_ = 1;                 // frames whose weights are used before the next tile
  std::vector<Block> blocks_;
  int64_t weights_ = 0;  // with padding
  const std::byte* packed_ = nullptr;
};

}  // namespace zoetrope::kernels
