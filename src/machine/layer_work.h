// The kernels of a model's layer on arbitrary numbers, to be timed: matrix multiplications, attention, norms and
// rotations, convolutions of the VAE. Each object has the operands of one kernel; next() runs it once on the stream's
// threads. Times nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "kernels/conv/frame_conv.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/gemm/packed.h"
#include "kernels/rope/rope.h"

namespace zoetrope::machine {

// As wide as a layer of Wan 2.1 1.3B, but with a smaller hidden width, so that a multiplication of many rows is short.
inline constexpr int64_t kLayerWidth = 1536;
inline constexpr int64_t kLayerHidden = 4096;
inline constexpr int64_t kLayerHeadDim = 128;

// Packed matrices of a layer, larger than the caches, so that weights come from memory as in a model. Streams may share
// them.
class LayerWeights {
 public:
  LayerWeights(ThreadTeam& team, DType packed);  // F32, BF16 or I8
  const kernels::PackedMatrix& qkv() const { return matrices_[0]; }
  const kernels::PackedMatrix& out() const { return matrices_[1]; }
  const kernels::PackedMatrix& up() const { return matrices_[2]; }
  const kernels::PackedMatrix& down() const { return matrices_[3]; }
  DType dtype() const { return dtype_; }  // of activations

 private:
  static constexpr size_t kMatrices = 4;
  DType dtype_;
  Tensor packed_[kMatrices];
  kernels::PackedMatrix matrices_[kMatrices];
};

// The matrix multiplications of a layer over `rows` rows, in the transformer's order. Both arguments must outlive it.
class LayerGemms {
 public:
  LayerGemms(Stream& stream, const LayerWeights& weights, int64_t rows);
  double next();  // its FLOP
  double all();   // each of them once
  static double flop(int64_t rows);

 private:
  double run(kernels::PackedGemm& call, const TensorView& x, const kernels::PackedMatrix& w, const TensorView& out);

  Stream& stream_;
  const LayerWeights& weights_;
  int64_t rows_;
  int turn_ = 0;
  Tensor x_, hidden_, wide_, stream_rows_, bias_, gate_;
};

// What a layer does per token besides matrix multiplications and attention: norms, RoPE, modulation, and conversion of
// attention's results to the dtype of operands. Over a long sequence, so that rows come from memory as in a run.
class TokenPasses {
 public:
  TokenPasses(Stream& stream, const LayerWeights& weights);
  static constexpr int64_t kChunk = 1024;
  double next(int64_t rows);  // one layer of the next `rows` tokens, at most kChunk; returns their number

 private:
  static constexpr int64_t kTokens = 4096, kSide = 64;

  TensorView operand(int64_t rows) const;
  void norm(const TensorView& x, int64_t rows, bool modulated);
  void turn(int64_t column, int64_t rows, bool normed, const Tensor& to);
  void convert(const TensorView& x, int64_t rows);

  Stream& stream_;
  DType dtype_, operand_dtype_;
  kernels::RopeTable rope_;
  Tensor x_, q_, k_, v_, qkv_, operand_, weight_, scale_, affine_;
  int64_t at_ = 0;
};

// 3×3×3 convolutions with norm and SiLU, of the two widths that most of the VAE's operations have, on strips of `rows`
// rows of a frame.
class Convolutions {
 public:
  static constexpr int64_t kRows = 12;
  Convolutions(Stream& stream, DType dtype, int64_t rows = kRows);
  double next();                     // its FLOP
  double all();                      // each of them once
  static double flop(int64_t rows);  // of that

 private:
  struct Layer {
    std::unique_ptr<kernels::FrameConvolution> convolution;
    Tensor input, output, gamma;
    double flop = 0;
  };
  Stream& stream_;
  std::vector<Layer> layers_;
  size_t turn_ = 0;
};

struct AttentionVariant {
  kernels::Softmax softmax = kernels::Softmax::kOnline;
  int64_t tile_rows = 0;  // of queries; 0: as a run on this machine has them
  bool int8 = false;      // of bf16, multiplied in int8
};

// One block of attention with at least two heads and at least one per thread.
class AttentionWork {
 public:
  AttentionWork(Stream& stream, DType dtype, int64_t queries, int64_t keys, const AttentionVariant& variant = {});
  double attend();          // FLOP
  double fold(int blocks);  // as a ring does: `blocks` blocks into a state
  const char* implementation() const { return kernel_.implementation(); }
  int64_t heads() const { return heads_; }
  static double flop(int threads, int64_t queries, int64_t keys);

 private:
  kernels::KeyBlock block() const;

  Stream& stream_;
  int64_t heads_;
  double flop_;
  kernels::FlashAttention kernel_;
  Tensor q_, k_, v_, o_;
  std::unique_ptr<kernels::FlashState> state_;
};

// Packs matrices that are in the page cache, as those of a checkpoint are.
class StoredMatrices {
 public:
  explicit StoredMatrices(int64_t matrices);  // Throws Error if there is not enough memory
  ~StoredMatrices();
  StoredMatrices(const StoredMatrices&) = delete;
  StoredMatrices& operator=(const StoredMatrices&) = delete;

  static constexpr int64_t kSide = 2048;
  static constexpr size_t kBytes = size_t{2} * kSide * kSide;  // of one
  size_t bytes() const { return static_cast<size_t>(matrices_) * kBytes; }
  // Packs all of them on the team's threads. Mapped again and into fresh memory each time, as a model's are, because
  // page faults are part of the time.
  void pack(ThreadTeam& team) const;

 private:
  struct Mapping {
    Mapping(const StoredMatrices& stored, int protection);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    std::byte* memory = nullptr;
    size_t bytes = 0;
  };

  int64_t matrices_;
  int file_;  // anonymous, in memory
};

}  // namespace zoetrope::machine
