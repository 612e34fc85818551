#include "models/wan/transformer/text_context.h"

#include <exception>

#include "base/error.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "models/wan/transformer/linear.h"

namespace zoetrope::wan {

TextContext::TextContext(std::shared_ptr<const TransformerWeights> weights, const TensorView& text,
                         std::span<const int64_t> key_lengths)
    : weights_(std::move(weights)), text_(text), key_lengths_(key_lengths.begin(), key_lengths.end()) {
  const TransformerConfig& config = weights_->config;
  ZT_CHECK(text.rank() == 3 && text.contiguous(), "text is {}", text.shape().to_string());
  if (text.extent(2) != config.text_dim) {
    fail("text embeddings have {} values a row, but the transformer's text_dim is {}", text.extent(2), config.text_dim);
  }
  batch_ = text.extent(0);
  rows_ = text.extent(1);
  ZT_CHECK(batch_ > 0 && rows_ > 0);
  ZT_CHECK(key_lengths_.empty() || static_cast<int64_t>(key_lengths_.size()) == batch_);
  const int64_t d = config.inner_dim();
  embedding_ = Tensor::uninitialized(weights_->dtype, {batch_, rows_, d});
  memory_ = Tensor::uninitialized(weights_->dtype, {config.num_layers * 2, batch_, rows_, d});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto heads = [&](int64_t which) {
      return memory_.view()
          .select(0, 2 * i + which)
          .split_axis(2, config.num_attention_heads, config.attention_head_dim);
    };
    keys_.push_back(heads(0));
    values_.push_back(heads(1));
  }
}

void TextContext::join(Stream& stream, const Probe& probe) {
  const size_t items = weights_->blocks.size() + 1;
  std::unique_lock lock(mutex_);
  while (done_items_ < items && !failure_) {
    // Every block reads the embedding, so nobody takes one before it is there.
    const bool can_take = next_item_ == 0 || (next_item_ < items && done_items_ > 0);
    if (!can_take) {
      changed_.wait(lock);
      continue;
    }
    const size_t item = next_item_++;
    lock.unlock();
    try {
      if (item == 0) {
        embed(stream, probe);
      } else {
        project(stream, item - 1);
      }
    } catch (const std::exception& error) {
      lock.lock();
      failure_ = error.what();
      changed_.notify_all();
      throw;
    }
    lock.lock();
    if (++done_items_ == items) embedding_ = Tensor();
    changed_.notify_all();
  }
  if (failure_) throw Error(*failure_);
}

void TextContext::embed(Stream& stream, const Probe& probe) {
  const Arena::Scope scope(stream.scratch());
  const int64_t rows = batch_ * rows_, d = weights_->config.inner_dim();
  TensorView text = text_.reshape({rows, weights_->config.text_dim});
  if (text.dtype() != weights_->dtype) {
    const TensorView converted = stream.scratch().tensor(weights_->dtype, text.shape());
    kernels::convert(stream, text, converted);
    text = converted;
  }
  const TensorView hidden = stream.scratch().tensor(weights_->dtype, {rows, d});
  linear(stream, text, weights_->text_in, hidden, kernels::Activation::kGeluTanh);
  linear(stream, hidden, weights_->text_out, embedding_.view().reshape({rows, d}));
  observe(probe, "text_embedding", embedding_);
}

void TextContext::project(Stream& stream, size_t block) {
  const TransformerBlockWeights& weights = weights_->blocks[block];
  const TransformerConfig& config = weights_->config;
  const Arena::Scope scope(stream.scratch());
  const int64_t rows = batch_ * rows_, d = config.inner_dim();
  const TensorView embedding = embedding_.view().reshape({rows, d});
  const TensorView raw_keys = stream.scratch().tensor(weights_->dtype, {rows, d});
  linear(stream, embedding, weights.cross_k, raw_keys);
  const HeadSlot slot{{0, config.num_attention_heads}, keys_[block]};
  kernels::rms_norm_rope(stream, {.x = raw_keys.reshape(keys_[block].shape()),
                                  .weight = weights.cross_norm_k,
                                  .cos = {},
                                  .sin = {},
                                  .eps = static_cast<float>(config.eps),
                                  .slots = {&slot, 1},
                                  .implementation = {}});
  linear(stream, embedding, weights.cross_v, values_[block].reshape({rows, d}));
}

}  // namespace zoetrope::wan
