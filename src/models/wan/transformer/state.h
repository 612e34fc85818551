// The state of a Transformer: its buffers and the steps of a forward, one file per part: embedding.cpp has what comes
// before and after the blocks, block.cpp a block, control.cpp VACE's second stream, face_adapter.cpp what Animate adds,
// transformer.cpp their order.
// Private to this folder.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/head_slot.h"

#include "base/error.h"
#include "kernels/flash_attention/flash_attention.h"
#include "kernels/gemm/packed.h"
#include "kernels/rope/rope.h"
#include "models/wan/transformer/linear.h"
#include "models/wan/transformer/transformer.h"
#include "models/wan/transformer/workspace.h"

namespace zoetrope::wan {

// Rows of a block's modulation, in the order of scale_shift_table.
enum ModulationRow : int64_t { kShift1, kScale1, kGate1, kShift2, kScale2, kGate2 };
enum HeadRow : int64_t { kHeadShift, kHeadScale, kHeadRows };

// Consecutive tokens of one sample.
struct Chunk {
  int64_t sample, place;  // index of all, and in the group of samples that is computed
  int64_t begin, end;
  int64_t rows() const { return end - begin; }
};

// [M, d] as [1, M, d].
inline TensorView one_sample(const TensorView& rows) {
  return {rows.raw(), rows.dtype(), {1, rows.extent(0), rows.extent(1)}, {0, rows.stride(0), 1}};
}

// One run of a block: its weights, its index (of its modulation and keys) and the stream that it adds to.
struct BlockCall {
  const TransformerBlockWeights& weights;
  size_t index;
  IndexRange samples;
  TensorView x;  // [G, S, d] of these samples
};

// Only the residual stream spans all tokens of a block; every other buffer is for one chunk of tokens. W: the model's
// dtype, M: rows of a chunk.
struct Transformer::State {
  State(std::shared_ptr<const TransformerWeights> shared, Stream& rank_stream, encoders::PartialSum* over_ranks)
      : weights(std::move(shared)),
        stream(rank_stream),
        sum(weights->part.parts > 1 ? over_ranks : nullptr),
        config(weights->config),
        dtype(weights->dtype) {
    const TensorPart part = sum == nullptr ? TensorPart() : TensorPart{sum->parts(), sum->part()};
    ZT_CHECK(weights->part == part, "weights of part {} of {}", weights->part.part, weights->part.parts);
  }

  void plan_cross();

  // embedding.cpp
  void embed_cells(const TensorView& latents, const LinearWeights& layer, const Chunk& chunk,
                   const TensorView& out) const;
  void embed_tokens(const TensorView& latents, const Probe& probe);
  void embed_time(const Timesteps& timesteps, const Probe& probe);
  TimeEmbedding embed_time_in_float(const Timesteps& timesteps);
  void modulate();
  void project_out(const TensorView& velocity_tokens, const Probe& probe);

  // block.cpp
  using UseOf = io::WeightStream::Use (TransformerWeights::*)(size_t index) const;
  io::WeightStream::Use wait_for_weights(UseOf use_of, size_t index);
  void run_block(const BlockCall& block, const std::string& name, const Probe& probe);  // observed as `name`
  void self_attention(const BlockCall& block);
  void cross_attention(const BlockCall& block, const Chunk& chunk);
  void attend_context(const BlockCall& block, const Chunk& chunk, const TensorView& q, const TensorView& o,
                      const TensorView& spare) const;
  void feed_forward(const BlockCall& block, const Chunk& chunk);

  // control.cpp
  void begin_control(IndexRange samples, const Probe& probe);
  void run_control(IndexRange samples, size_t index, const Probe& probe);
  void add_hint(IndexRange samples, size_t index, const Probe& probe);

  // face_adapter.cpp
  void project_faces(const TensorView& face);
  void add_pose(const Probe& probe);
  void norm_heads(const TensorView& from, const TensorView& weight, const TensorView& to) const;
  void add_face(IndexRange samples, size_t adapter, const Probe& probe);
  void attend_faces(const Chunk& chunk, size_t adapter, const TensorView& q, const TensorView& o) const;
  // [frames·face tokens, d]
  TensorView face_keys(size_t adapter, int64_t which, int64_t sample) const {
    return buffers.face_keys.view().select(0, static_cast<int64_t>(adapter)).select(0, which).select(0, sample);
  }

  // transformer.cpp
  void take_timesteps(const Timesteps& of);
  void require_blocks(std::span<const Blocks> blocks) const;
  void pass_blocks(IndexRange samples, Blocks what, const Probe& probe);
  void run_blocks(IndexRange samples, const Probe& probe);

  template <typename Body>
  void for_each_chunk(IndexRange samples, Body&& body) const {
    const int64_t rows = chunk_rows(tokens_local);
    for (int64_t b = samples.begin; b < samples.end; ++b)
      for (int64_t begin = 0; begin < tokens_local; begin += rows)
        body(Chunk{b, b - samples.begin, begin, std::min(begin + rows, tokens_local)});
  }
  // body(rows of the chunk, set) for each run of tokens that share a timestep, so a set of modulations.
  template <typename Body>
  void for_each_run(const Chunk& chunk, Body&& body) const {
    for (int64_t begin = chunk.begin; begin < chunk.end;) {
      const int64_t set = set_of(chunk.sample, begin);
      int64_t end = begin + 1;
      if (by_token()) {
        while (end < chunk.end && set_of(chunk.sample, end) == set) ++end;
      } else {
        end = chunk.end;
      }
      body(IndexRange{begin - chunk.begin, end - chunk.begin}, set);
      begin = end;
    }
  }
  bool by_token() const { return static_cast<int64_t>(time_index.size()) > batch; }
  int64_t set_of(int64_t sample, int64_t token) const {
    if (time_index.empty()) return sample;
    if (!by_token()) return time_index[static_cast<size_t>(sample)];
    return time_index[static_cast<size_t>(sample * attention->problem().tokens + tokens.begin + token)];
  }

  // [M, d] of a tensor [G, S, d].
  static TensorView rows(const TensorView& all, const Chunk& chunk) {
    return all.select(0, chunk.place).slice(0, chunk.begin, chunk.end);
  }
  TensorView stream_of(IndexRange samples) const { return buffers.x.view().slice(0, samples.begin, samples.end); }
  TensorView heads(const TensorView& value) const {
    return value.split_axis(value.rank() - 1, weights->heads(), config.attention_head_dim);
  }
  // Where self-attention's result is, [G, S, A].
  TensorView attended() const { return {buffers.o.view().raw(), dtype, {group, tokens_local, weights->heads_width()}}; }
  TensorView modulation(size_t block) const {  // [V, 6, d]
    return buffers.modulation.view().select(0, static_cast<int64_t>(block));
  }
  // [M, K] of a multiplication with w [N, K], rows apart.
  TensorView operand(int64_t m, const kernels::PackedMatrix& w) const {
    return {buffers.operand.view().raw(), kernels::operand_dtype(w), {m, w.k}, {w.k + kOperandPadding, 1}};
  }
  // The part-th of several tensors [M, width] W in the chunk's wide buffer.
  TensorView wide_part(int64_t part, int64_t m, int64_t width) const {
    const int64_t bytes = part * m * width * static_cast<int64_t>(dtype_size(dtype));
    return {buffers.wide.data<std::byte>() + bytes, dtype, {m, width}};
  }

  struct Affine {  // of a norm: neither, or weight and bias, or scale and shift; [d] F32
    TensorView weight, bias, scale, shift;
  };
  void normalise(const TensorView& x_rows, const Affine& affine, const TensorView& out) const;
  // LN(x)·(1 + scale) + shift of a chunk, each token with its own, as the operand of `w`; tables [V, rows, d].
  TensorView modulated(const char* span, const TensorView& x_rows, const Chunk& chunk, const TensorView& tables,
                       int64_t scale, int64_t shift, const kernels::PackedMatrix& w) const;
  void multiply(const char* span, const TensorView& x, const LinearWeights& layer, kernels::PackedGemm call) const;
  TensorView gate_of(const BlockCall& block, std::optional<ModulationRow> gate, int64_t set) const;
  void add_gated(const char* span, const TensorView& n, const LinearWeights& layer, const BlockCall& block,
                 const Chunk& chunk, std::optional<ModulationRow> gate) const;
  void add_sum(const TensorView& sums, const BlockCall& block, const Chunk& chunk,
               std::optional<ModulationRow> gate) const;
  TensorView add_up_squares(std::initializer_list<TensorView> of) const;
  struct HeadNorm {      // of all heads; none without a weight
    TensorView weight;   // [A]
    TensorView squares;  // [M], where ranks share the layer
  };
  void write_heads(const TensorView& from, const HeadNorm& norm, const Chunk* rotate,
                   std::span<const HeadSlot> slots) const;
  void write_slots(const TensorView& from, const HeadNorm& norm, const Chunk& chunk, bool rotate,
                   std::span<const HeadSlot> slots);

  std::shared_ptr<const TransformerWeights> weights;
  Stream& stream;
  encoders::PartialSum* sum;  // null: this rank has whole layers
  const TransformerConfig& config;
  DType dtype;

  int64_t batch = 0;
  int64_t group = 0;  // samples that attention takes together
  Shape latent;       // {F, H, W}
  TokenGrid grid;
  attention::ContextAttention* attention = nullptr;
  IndexRange tokens;
  int64_t tokens_local = 0;
  kernels::RopeTable rope;
  std::shared_ptr<TextContext> context;
  struct CrossKernels {
    kernels::FlashAttention whole;                // of a chunk
    std::optional<kernels::FlashAttention> last;  // of a sample's last where that is shorter
  };
  std::vector<CrossKernels> cross;  // for each source of keys
  TensorView control_latents;       // [B, C_vace, Fc, H, W]
  std::span<const float> control_scales;
  TensorView pose;  // [1 or B, C, F − 1, H, W]
  TransformerBuffers buffers;
  int64_t most_timesteps = 0;
  int64_t timesteps = 0;                // values of this forward
  std::span<const int32_t> time_index;  // of this forward
  std::vector<HeadSlot> chunk_slots;    // of the tensor that is written; reused, so that a step allocates nothing
  double weights_wait_seconds = 0;
};

}  // namespace zoetrope::wan
