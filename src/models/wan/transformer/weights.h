// The transformer's parameters, laid out as the executor reads them: matrices packed for this CPU, q, k, v joined,
// some tensors in float32. Built once per process, read by every rank's thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/weights/tensor_table.h"
#include "io/weights/weight_stream.h"
#include "io/weights/weights.h"
#include "kernels/gemm/packed.h"
#include "models/wan/config.h"

namespace zoetrope::wan {

struct LinearWeights {
  kernels::PackedMatrix weight;  // [out, in]
  TensorView bias;               // [out]
};

// Keys and values of cross-attention, of rows from one source: the text, or the image.
struct KeyWeights {
  LinearWeights k;  // [A, d] W
  LinearWeights v;  // [A, d] W
  TensorView norm;  // [A] W, of k
};

// W: the model's dtype; the others are always float32 (wan.md section 2.9). Where ranks share the layers, each has A of
// the d columns of all heads and F of ffn_dim; else they are the same.
struct TransformerBlockWeights {
  TensorView modulation;  // [6, d] F32: scale_shift_table

  LinearWeights self_qkv;  // [3A, d] W: to_q, to_k, to_v
  TensorView self_norm_q;  // [A] W
  TensorView self_norm_k;  // [A] W
  LinearWeights self_out;  // [d, A] W

  TensorView cross_norm_weight;  // [d] F32, empty without cross_attn_norm: norm2
  TensorView cross_norm_bias;    // [d] F32
  LinearWeights cross_q;         // [A, d] W
  TensorView cross_norm_q;       // [A] W
  LinearWeights cross_out;       // [d, A] W
  std::vector<KeyWeights> keys;  // of the text; with added_kv_proj_dim then of the image

  LinearWeights ffn_in;   // [F, d] W
  LinearWeights ffn_out;  // [d, F] W
};

// From rows of the image encoder to context rows.
struct ImageEmbedderWeights {
  TensorView positions;                // [pos_embed_seq_len, image_dim] W, empty without: pos_embed
  TensorView in_norm, in_norm_bias;    // [image_dim] F32: norm1
  LinearWeights hidden;                // [image_dim, image_dim] W: ff.net.0.proj
  LinearWeights out;                   // [d, image_dim] W: ff.net.2
  TensorView out_norm, out_norm_bias;  // [d] F32: norm2
};

// The start of the control stream, and the projections of its hints.
struct ControlWeights {
  LinearWeights patch_embedding;     // [d, C_vace·pt·ph·pw] W
  LinearWeights in;                  // [d, d] W: proj_in of its first block
  std::vector<LinearWeights> hints;  // [d, d] W: proj_out of each
};

// Cross-attention to the face tokens of a token's own latent frame.
struct FaceAdapterWeights {
  LinearWeights q, k, v, out;  // [d, d] W
  TensorView norm_q, norm_k;   // [head_dim] W, per head
};

// Convolutions of the face branch have the channels of a tap side by side, [out, taps·in], as patches of channels-last
// pictures have them. Those of the motion encoder, and its matrices, are multiplied by 1/√(inputs).
struct MotionBlockWeights {
  LinearWeights conv1, conv2, skip;  // with the biases of the activations behind conv1 and conv2
};
struct FaceWeights {
  LinearWeights pose_patch_embedding;  // [d, C·pt·ph·pw] W
  LinearWeights motion_in, motion_out;
  std::vector<MotionBlockWeights> motion_blocks;
  std::vector<LinearWeights> motion_network;
  Tensor motion_basis;  // [vector_dim, motion_dim] F32: orthonormal columns of motion_synthesis_weight + 1e-8
  LinearWeights conv1_local, conv2, conv3, out;
  TensorView padding;  // [d] W
  std::vector<FaceAdapterWeights> adapters;
};

// Of the ranks that share the layers of the blocks, one.
struct TensorPart {
  int parts = 1, part = 0;
  friend constexpr bool operator==(const TensorPart&, const TensorPart&) = default;
};

class TransformerWeights {
 public:
  // `dtype` F32 or BF16; `threads` read and pack (0: all available). `tick` is called after every matrix and every
  // other tensor, on the calling thread and equally often on every rank; it may throw to stop, because reading and
  // converting a large model takes minutes. Throws Error for a model that is not supported and for tensors that are
  // missing or have another shape than the config says. `source`: of a share of the layers, that share (source_of()).
  static std::shared_ptr<const TransformerWeights> load(const TransformerConfig& config,
                                                        std::shared_ptr<const io::Weights> source, DType dtype,
                                                        const std::function<void()>& tick = {}, int threads = 0,
                                                        TensorPart share = {});
  // A share of a model's tensors, to be loaded from.
  static std::shared_ptr<const io::WeightSource> source_of(std::shared_ptr<const io::WeightSource> whole,
                                                           const TransformerConfig& config, TensorPart share);

  // Where weights are read as they are used (io::Weights::Loading): what is computed with must be in use. A thread
  // holds one at a time. Without that they cost nothing.
  io::WeightStream::Use use_block(size_t block) const;              // all but the keys; as in `blocks`
  io::WeightStream::Use use_keys(size_t block) const;               // `keys` of a block
  io::WeightStream::Use use_adapter(size_t index) const;            // as in face.adapters
  void settle() const;                                              // io::WeightStream::settle()
  const io::WeightStream* stream() const { return stream_.get(); }  // null: all weights are in memory

  TransformerConfig config;
  DType dtype = DType::kF32;
  TensorPart part;

  int64_t heads() const { return config.num_attention_heads / part.parts; }  // here, of every attention
  int64_t heads_width() const { return heads() * config.attention_head_dim; }

  LinearWeights patch_embedding;  // [d, C_in·pt·ph·pw] W
  LinearWeights time_in;          // [d, freq_dim] F32
  LinearWeights time_out;         // [d, d] F32
  LinearWeights time_proj;        // [6d, d] W
  LinearWeights text_in;          // [d, text_dim] W
  LinearWeights text_out;         // [d, d] W
  ImageEmbedderWeights image;     // empty without image_dim
  TensorView head_modulation;     // [2, d] F32
  LinearWeights proj_out;         // [pt·ph·pw·C_out, d] W
  // num_layers of them; VACE: then those of the control stream, len(vace_layers).
  std::vector<TransformerBlockWeights> blocks;
  ControlWeights control;  // empty unless VACE
  FaceWeights face;        // empty unless Animate

 private:
  TransformerWeights() = default;
  io::WeightStream::Use use(size_t streamed) const;  // a part of the stream

  std::shared_ptr<const io::Weights> source_;  // owns what the views show
  std::unique_ptr<io::WeightStream> stream_;   // of its packed weights
};

// Below, `tensor` ranks share every layer (io::part_of()); the bytes are of one of them, the last, which has the most.

// Bytes of the parameters of transformer_tensors(), or of a part of them, as stored here, packed for this CPU.
int64_t transformer_weight_bytes(const io::TensorTable& table, DType dtype);
// Memory for weights that are streamed: what is in no block, and blocks. `packed_from`: bytes per element of the stored
// tensors, where blocks are packed when they are used; 0: they are read packed.
struct StreamedBytes {
  int64_t least;  // with which a stream works: two blocks
  int64_t usual;  // and with which blocks are read ahead: three
};
StreamedBytes streamed_bytes(const TransformerConfig& config, DType dtype, int64_t packed_from, int tensor = 1);
// What a forward uses of packed weights: all blocks and adapters, without the keys of the prompts.
struct ForwardWeights {
  int64_t bytes = 0, elements = 0;
  double fetched = 0;  // share of it that is fetched again in every forward
};
// Streamed with `memory` bytes for packed weights; 0: with the usual. `packed_from` as above.
ForwardWeights streamed_forward(const TransformerConfig& config, DType dtype, int64_t packed_from, int64_t memory,
                                int tensor = 1);
// Of one of `shards` ranks that share the blocks: its part of all, two blocks, and what is in no block.
int64_t sharded_weight_bytes(const TransformerConfig& config, DType dtype, int shards, int tensor = 1);

}  // namespace zoetrope::wan
