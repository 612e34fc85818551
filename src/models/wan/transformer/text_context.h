// Keys and values of a prompt for the cross-attention of every block: they depend on the text and, where the model
// looks at an image, on the image alone, so they are computed once per prompt and kept. One object serves all ranks of
// a process that denoise the same samples. They compute it together: each rank that joins takes blocks until none is
// left.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "models/encoders/partial_sum.h"
#include "models/wan/transformer/weights.h"
#include "tensor/probe.h"

namespace zoetrope::wan {

class TextContext {
 public:
  // text [B, L, text_dim] F32 or BF16. `key_lengths` [B] or empty: the number of rows per sample that cross-attention
  // uses (the reference uses all of them, zero rows included). image, for models with an image_dim and only for
  // them: rows of the image encoder [B or 1, S, image_dim] F32 or BF16, 1 where all samples share them; a model with
  // position embeddings takes its images' rows in one or in several pieces, [n, pos_embed_seq_len / n, image_dim] of a
  // sample. Text and image must stay until join() has returned on every rank.
  TextContext(std::shared_ptr<const TransformerWeights> weights, const TensorView& text,
              std::span<const int64_t> key_lengths = {}, const TensorView& image = {});

  // Computes blocks that no rank has taken yet, with the caller's threads, and returns when all blocks are finished.
  // Any rank may call, in any order; when one fails, the others fail with its message. The probe sees "text_embedding"
  // [B, L, d] and "image_embedding" [B or 1, S, d] where this rank computed them. `sum`: over the ranks that share the
  // layers of weights that are a part of them, each with a context of its part, which all join; null for whole ones.
  void join(Stream& stream, const Probe& probe = {}, encoders::PartialSum* sum = nullptr);

  int64_t batch() const { return batch_; }
  // Sources of keys, each with its own softmax, whose results are added: the text, then the image where the model has
  // keys for it. (Where it has none, the image's rows come before the text's in one source.)
  size_t sources() const { return sources_.size(); }
  int64_t rows(size_t source) const { return sources_[source].rows; }
  std::span<const int64_t> key_lengths(size_t source) const { return sources_[source].key_lengths; }
  struct KeyRows {
    TensorView k, v;                       // [1, rows, H, D] of the model dtype
    std::span<const int64_t> key_lengths;  // [1], or empty: all rows
  };
  // Of one sample, after join(). `block` as in TransformerWeights::blocks.
  KeyRows keys(size_t source, size_t block, int64_t sample) const;

 private:
  struct Source {
    int64_t batch = 0;                 // that of the prompt, or 1: the same for all samples
    int64_t rows = 0;                  // per sample
    std::vector<int64_t> key_lengths;  // [batch] or empty
    Tensor embedding;                  // [batch, rows, d]; freed when the last block is done
    Tensor memory;                     // [blocks, 2, batch, rows, A]
    // Where ranks share the layers, of the keys that are not normed yet: the part's sums of squares.
    Tensor squares;  // [blocks, batch·rows] F32
  };
  // Dealt to the ranks as they come.
  struct Items {
    size_t next = 0, done = 0;
  };
  template <typename Body>
  void share(Items& items, size_t count, bool first_alone, Body&& body);
  void take_image(const TensorView& image);
  void add_source(int64_t batch, int64_t rows, std::vector<int64_t> key_lengths);
  void embed(Stream& stream, const Probe& probe);
  void embed_text(Stream& stream, const TensorView& rows, const TensorView& out) const;
  void embed_image(Stream& stream, const TensorView& rows, const TensorView& out) const;
  void project(Stream& stream, size_t block);
  void norm_keys(Stream& stream, const TensorView& raw, const TensorView& weight, const TensorView& squares,
                 const TensorView& out) const;
  void norm_after_sums(Stream& stream, encoders::PartialSum& sum);

  std::shared_ptr<const TransformerWeights> weights_;
  TensorView text_;   // [B, L, text_dim]
  TensorView image_;  // [B or 1, S, image_dim], or empty
  int64_t batch_ = 0;
  std::vector<Source> sources_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Items projections_;                   // the embedding, then every block
  Items norms_;                         // every block, where ranks share the layers
  std::optional<std::string> failure_;  // of the first rank that failed; an exception object is not shared by threads
};

// Rows of a sample's prompt.
struct ContextRows {
  int64_t text = 0;
  int64_t image = 0;  // of the image encoder; 0: the model looks at none
};
// Bytes of a context of `batch` samples, each with its own image; and the further bytes per rank while it is computed.
// `tensor` ranks share every layer.
int64_t text_context_bytes(const TransformerConfig& config, int64_t batch, const ContextRows& rows, DType dtype,
                           int tensor = 1);
int64_t text_context_making_bytes(const TransformerConfig& config, int64_t batch, const ContextRows& rows, DType dtype);

}  // namespace zoetrope::wan
