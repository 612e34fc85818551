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
  // [B, L, d] and "image_embedding" [B or 1, S, d] where this rank computed them.
  void join(Stream& stream, const Probe& probe = {});

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
    Tensor memory;                     // [blocks, 2, batch, rows, d]
  };
  void take_image(const TensorView& image);
  void add_source(int64_t batch, int64_t rows, std::vector<int64_t> key_lengths);
  void embed(Stream& stream, const Probe& probe);
  void embed_text(Stream& stream, const TensorView& rows, const TensorView& out) const;
  void embed_image(Stream& stream, const TensorView& rows, const TensorView& out) const;
  void project(Stream& stream, size_t block);

  std::shared_ptr<const TransformerWeights> weights_;
  TensorView text_;   // [B, L, text_dim]
  TensorView image_;  // [B or 1, S, image_dim], or empty
  int64_t batch_ = 0;
  std::vector<Source> sources_;

  // Item 0 is the embedding, item i + 1 block i.
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_item_ = 0;
  size_t done_items_ = 0;
  std::optional<std::string> failure_;  // of the first rank that failed; an exception object is not shared by threads
};

// Rows of a sample's prompt.
struct ContextRows {
  int64_t text = 0;
  int64_t image = 0;  // of the image encoder; 0: the model looks at none
};
// Bytes of a context of `batch` samples, each with its own image; and the further bytes per rank while it is computed.
int64_t text_context_bytes(const TransformerConfig& config, int64_t batch, const ContextRows& rows, DType dtype);
int64_t text_context_making_bytes(const TransformerConfig& config, int64_t batch, const ContextRows& rows, DType dtype);

}  // namespace zoetrope::wan
