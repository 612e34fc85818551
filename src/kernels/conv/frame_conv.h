// Convolutions of the VAE on single frames, channels last: one frame of output from one or several frames of input,
// summed over all taps in registers. Bias, residual, the norm and SiLU of the next layer, and the rounding to bf16 are
// applied while a few rows are in cache, so a frame is written once. Past frames of a convolution over time are read
// where they are, without copies. Not for whole clips.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "zoetrope/tensor.h"

#include "device/stream.h"

namespace zoetrope::kernels {

// Bytes of scratch that a thread takes at most for strips of Winograd's tiles.
inline constexpr int64_t kConvScratch = int64_t{4} << 20;

// How sums are added up. kWinograd: 3×3 kernels of stride 1 by F(2×2, 3×3), with fewer products and, where
// bf16 is multiplied, larger errors (winograd_convolution.h); every other kernel directly. kAuto: by Winograd with at
// least 64 input and output channels.
enum class ConvAlgorithm : uint8_t { kAuto, kDirect, kWinograd };

// out(y, x, o) = bias(o) + Σ w(o, c, t, i, j)·in_t(origin₀ + y·stride + i, origin₁ + x·stride + j, c). There is no
// padding: a border is part of the input in memory.
struct FrameConvProblem {
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  int64_t frames = 1;                   // taps over time, each on a frame of its own
  std::array<int64_t, 2> kernel{1, 1};  // rows, columns
  std::array<int64_t, 2> origin{0, 0};
  int64_t stride = 1;         // over rows and columns
  DType dtype = DType::kF32;  // of every activation: F32 or BF16; sums are float32
  // Whether all weights are exact in bf16. Then they take two bytes where activations are bf16, but in the reference,
  // and are widened into the stream's scratch by each call where products are float32.
  bool bf16_weights = false;
  ConvAlgorithm algorithm = ConvAlgorithm::kAuto;
  std::string implementation;
};

// Which of the two this CPU takes for a problem, kDirect or kWinograd; Error where implementation is forced and cannot.
ConvAlgorithm algorithm_of(const FrameConvProblem& problem);
// Bytes of a problem's weights in the layout of kWinograd. Call where algorithm_of() is that.
int64_t winograd_weight_bytes(const FrameConvProblem& problem);
// Why this CPU computes no convolution by Winograd, however wide; empty where it does.
std::string winograd_refusal();

// What is computed from the sums. Everything is [H, W, O] in the problem's dtype, with any strides but a contiguous
// last axis; raw, normed or both are required, and neither may overlap an input.
struct FrameConvOutput {
  TensorView add;     // optional
  TensorView raw;     // sums + bias + add, rounded once; may be add
  TensorView normed;  // raw / max(‖raw‖₂, 1e-12)·√O·gamma over channels, then SiLU if asked, rounded once
  TensorView gamma;   // [O] F32, with normed
  bool silu = false;
  // Where the first row is in the picture: Winograd's tiles are rows 2·i and 2·i + 1 of it, so that parts of a picture
  // that begin anywhere get the bits of the whole. Columns are always all of the picture's.
  int64_t first_row = 0;
};

class FrameConvolution {
 public:
  // bias [O] or empty, F32, contiguous, copied. Weights follow: pack() makes them, use() says where they are.
  FrameConvolution(const FrameConvProblem& problem, const TensorView& bias);
  // With weights [O, I, frames, rows, columns] of its own, of which it packs a copy.
  FrameConvolution(const FrameConvProblem& problem, const TensorView& weight, const TensorView& bias);
  ~FrameConvolution();
  FrameConvolution(FrameConvolution&&) noexcept;

  const FrameConvProblem& problem() const;
  const char* implementation() const;
  ConvAlgorithm algorithm() const;  // never kAuto

  // The kernels' layout of the weights: its size, and of how many output channels any multiple can be packed apart.
  size_t weight_bytes() const;
  int64_t weight_step() const;
  // Packs the output channels from `first` on, a multiple of the step. weight [≤ O, I, frames, rows, columns] F32,
  // contiguous; where dtype is BF16 rounded as the model requires: where products are bf16, other weights (sums of
  // taps) are rounded here. `packed`: all weight_bytes(), 64-byte aligned, of which it writes those of these channels.
  // Any thread.
  void pack(const TensorView& weight, int64_t first, std::byte* packed) const;
  // What pack() has filled. It must outlive this. Before run().
  void use(const std::byte* packed);

  // inputs: [h, w, C] each, oldest first, the last two axes contiguous; the first ones may be empty (before the clip
  // began): their taps are left out. The bits of a pixel do not depend on the other pixels of the call or the number of
  // threads; with Winograd they depend on whether its row and column in the picture are even. Safe to call from several
  // ranks at once, each with its own stream.
  void run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zoetrope::kernels
