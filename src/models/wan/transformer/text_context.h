// Keys and values of a prompt for the cross-attention of every block: they depend on the text alone, so they are
// computed once per prompt and kept. One object serves all ranks of a process that denoise the same samples, and they
// compute it together: each rank that joins takes blocks until none is left.
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
#include "models/wan/probe.h"
#include "models/wan/transformer/weights.h"

namespace zoetrope::wan {

class TextContext {
 public:
  // text [B, L, text_dim] F32 or BF16, must stay until join() has returned on every rank. `key_lengths` [B] or empty:
  // how many rows of each sample cross-attention looks at (the reference looks at all of them, zero rows included).
  TextContext(std::shared_ptr<const TransformerWeights> weights, const TensorView& text,
              std::span<const int64_t> key_lengths = {});

  // Computes what is left to compute, with the caller's threads, and returns when all of it is there. Any rank may
  // call, in any order; when one fails, the others fail with its message. The probe sees "text_embedding" [B, L, d]
  // where this rank computed it.
  void join(Stream& stream, const Probe& probe = {});

  int64_t batch() const { return batch_; }
  int64_t rows() const { return rows_; }
  std::span<const int64_t> key_lengths() const { return key_lengths_; }
  // [B, L, H, D] of the model dtype, after join().
  const TensorView& keys(size_t block) const { return keys_[block]; }
  const TensorView& values(size_t block) const { return values_[block]; }

 private:
  void embed(Stream& stream, const Probe& probe);
  void project(Stream& stream, size_t block);

  std::shared_ptr<const TransformerWeights> weights_;
  TensorView text_;  // [B, L, text_dim]
  int64_t batch_ = 0;
  int64_t rows_ = 0;
  std::vector<int64_t> key_lengths_;

  Tensor embedding_;              // [B, L, d]; freed when the last block is done
  Tensor memory_;                 // [layers, 2, B, L, d]
  std::vector<TensorView> keys_;  // per block, into memory_
  std::vector<TensorView> values_;

  // Item 0 is the embedding, item i + 1 block i.
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t next_item_ = 0;
  size_t done_items_ = 0;
  std::optional<std::string> failure_;  // of the first rank that failed; an exception object is not shared by threads
};

}  // namespace zoetrope::wan
