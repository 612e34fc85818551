#include "models/wan/transformer/text_context.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "models/wan/transformer/linear.h"
#include "tensor/copy_of.h"

namespace zoetrope::wan {

namespace {

// For the image embedder's norms; the config's eps is for the blocks.
constexpr float kImageNormEps = 1e-5f;

// Rows [M, K] in the model's dtype, converted in scratch memory where needed.
TensorView in_dtype(Stream& stream, const TensorView& rows, DType dtype) {
  if (rows.dtype() == dtype) return rows;
  const TensorView converted = stream.scratch().tensor(dtype, rows.shape());
  kernels::convert(stream, rows, converted);
  return converted;
}

// [M, d] as [1, M, d].
TensorView one_sample(const TensorView& rows) { return rows.reshape({1, rows.extent(0), rows.extent(1)}); }

void norm_rows(Stream& stream, const TensorView& x, const TensorView& weight, const TensorView& bias,
               const TensorView& out) {
  kernels::layer_norm(stream, {.x = one_sample(x),
                               .weight = weight,
                               .bias = bias,
                               .scale = {},
                               .shift = {},
                               .eps = kImageNormEps,
                               .out = one_sample(out),
                               .implementation = {}});
}

}  // namespace

TextContext::TextContext(std::shared_ptr<const TransformerWeights> weights, const TensorView& text,
                         std::span<const int64_t> key_lengths, const TensorView& image)
    : weights_(std::move(weights)), text_(text) {
  const TransformerConfig& config = weights_->config;
  ZT_CHECK(text.rank() == 3 && text.contiguous(), "text is {}", text.shape().to_string());
  if (text.extent(2) != config.text_dim) {
    fail("text embeddings have {} values per row, but the transformer's text_dim is {}", text.extent(2),
         config.text_dim);
  }
  batch_ = text.extent(0);
  ZT_CHECK(batch_ > 0 && text.extent(1) > 0);
  ZT_CHECK(key_lengths.empty() || static_cast<int64_t>(key_lengths.size()) == batch_);
  take_image(image);
  const bool own_keys = config.added_kv_proj_dim.has_value();
  const int64_t before = image_ && !own_keys ? image_.extent(1) : 0;
  std::vector<int64_t> lengths(key_lengths.begin(), key_lengths.end());
  for (int64_t& length : lengths) length += before;
  add_source(batch_, before + text.extent(1), std::move(lengths));
  if (own_keys) add_source(image_.extent(0), image_.extent(1), {});
}

void TextContext::take_image(const TensorView& image) {
  const TransformerConfig& config = weights_->config;
  if (image && !config.image_dim) fail("the prompt has an image, but the transformer takes text only");
  if (!image && config.image_dim) fail("the transformer looks at an image, but the prompt has none");
  if (!image) return;
  ZT_CHECK(image.rank() == 3 && image.contiguous(), "the image's rows are {}", image.shape().to_string());
  if (image.extent(2) != *config.image_dim) {
    fail("image embeddings have {} values per row, but the transformer's image_dim is {}", image.extent(2),
         *config.image_dim);
  }
  const int64_t all = image.extent(0) * image.extent(1), rows = config.pos_embed_seq_len.value_or(image.extent(1));
  if (rows == 0 || all % rows != 0 || (all / rows != 1 && all / rows != batch_)) {
    fail("image embeddings are {}, but the transformer takes {} rows for each of {} samples, or once for all of them",
         image.shape().to_string(), rows, batch_);
  }
  image_ = image.reshape({all / rows, rows, *config.image_dim});
}

void TextContext::add_source(int64_t batch, int64_t rows, std::vector<int64_t> key_lengths) {
  const int64_t d = weights_->config.inner_dim(), blocks = weights_->config.block_count();
  Source source;
  source.batch = batch;
  source.rows = rows;
  source.key_lengths = std::move(key_lengths);
  source.embedding = Tensor::uninitialized(weights_->dtype, {batch, rows, d});
  source.memory = Tensor::uninitialized(weights_->dtype, {blocks * 2, batch, rows, weights_->heads_width()});
  if (weights_->part.parts > 1) source.squares = Tensor::uninitialized(DType::kF32, {blocks, batch * rows});
  sources_.push_back(std::move(source));
}

TextContext::KeyRows TextContext::keys(size_t source, size_t block, int64_t sample) const {
  const Source& from = sources_[source];
  const int64_t b = from.batch == 1 ? 0 : sample;
  const auto heads = [&](int64_t which) {
    return from.memory.view()
        .select(0, static_cast<int64_t>(block) * 2 + which)
        .slice(0, b, b + 1)
        .split_axis(2, weights_->heads(), weights_->config.attention_head_dim);
  };
  const std::span<const int64_t> lengths = from.key_lengths;
  return {heads(0), heads(1), lengths.empty() ? lengths : lengths.subspan(static_cast<size_t>(b), 1)};
}

// Takes items until none is left, and returns when all are finished. `first_alone`: the others read what it makes.
template <typename Body>
void TextContext::share(Items& items, size_t count, bool first_alone, Body&& body) {
  std::unique_lock lock(mutex_);
  while (items.done < count && !failure_) {
    const bool can_take = items.next < count && (items.next == 0 || !first_alone || items.done > 0);
    if (!can_take) {
      changed_.wait(lock);
      continue;
    }
    const size_t item = items.next++;
    lock.unlock();
    try {
      body(item);
    } catch (const std::exception& error) {
      lock.lock();
      failure_ = error.what();
      changed_.notify_all();
      throw;
    }
    lock.lock();
    ++items.done;
    changed_.notify_all();
  }
  if (failure_) throw Error(*failure_);
}

void TextContext::join(Stream& stream, const Probe& probe, encoders::PartialSum* sum) {
  const bool divided = weights_->part.parts > 1;
  ZT_CHECK(divided == (sum != nullptr && sum->parts() > 1));
  share(projections_, weights_->blocks.size() + 1, true, [&](size_t item) {
    if (item == 0) embed(stream, probe);
    else project(stream, item - 1);
  });
  {
    const std::lock_guard lock(mutex_);
    for (Source& source : sources_) source.embedding = Tensor();
  }
  if (divided) norm_after_sums(stream, *sum);
}

// Sample by sample, into the rows of its source.
void TextContext::embed(Stream& stream, const Probe& probe) {
  const TensorView with_text = sources_.front().embedding;
  const int64_t before = with_text.extent(1) - text_.extent(1);  // rows of an image in the same source
  const TensorView text_out = with_text.slice(1, before, with_text.extent(1));
  for (int64_t b = 0; b < batch_; ++b) embed_text(stream, text_.select(0, b), text_out.select(0, b));
  observe(probe, "text_embedding", text_out);
  if (!image_) return;
  const TensorView image_out = sources_.size() > 1 ? sources_.back().embedding.view() : with_text.slice(1, 0, before);
  for (int64_t b = 0; b < image_out.extent(0); ++b)
    embed_image(stream, image_.select(0, image_.extent(0) == 1 ? 0 : b), image_out.select(0, b));
  observe(probe, "image_embedding", image_out);
}

void TextContext::embed_text(Stream& stream, const TensorView& rows, const TensorView& out) const {
  const Arena::Scope scope(stream.scratch());
  const TensorView hidden = stream.scratch().tensor(weights_->dtype, out.shape());
  linear(stream, in_dtype(stream, rows, weights_->dtype), weights_->text_in, hidden, kernels::Activation::kGeluTanh);
  linear(stream, hidden, weights_->text_out, out);
}

void TextContext::embed_image(Stream& stream, const TensorView& rows, const TensorView& out) const {
  const ImageEmbedderWeights& weights = weights_->image;
  const Arena::Scope scope(stream.scratch());
  const auto make = [&](const Shape& shape) { return stream.scratch().tensor(weights_->dtype, shape); };
  TensorView x = in_dtype(stream, rows, weights_->dtype);
  if (weights.positions) {
    const TensorView placed = make(x.shape());
    kernels::gated_add(stream, one_sample(x), one_sample(weights.positions), {}, one_sample(placed));
    x = placed;
  }
  const TensorView n = make(x.shape()), hidden = make(x.shape()), raw = make(out.shape());
  norm_rows(stream, x, weights.in_norm, weights.in_norm_bias, n);
  linear(stream, n, weights.hidden, hidden, kernels::Activation::kGeluErf);
  linear(stream, hidden, weights.out, raw);
  norm_rows(stream, raw, weights.out_norm, weights.out_norm_bias, out);
}

void TextContext::project(Stream& stream, size_t block) {
  const io::WeightStream::Use use = weights_->use_keys(block);
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    const KeyWeights& weights = weights_->blocks[block].keys[i];
    const Arena::Scope scope(stream.scratch());
    const int64_t rows = source.batch * source.rows;
    const TensorView embedding = source.embedding.view().reshape({rows, weights_->config.inner_dim()});
    const auto out = [&](int64_t which) {
      return source.memory.view()
          .select(0, static_cast<int64_t>(block) * 2 + which)
          .reshape({rows, weights_->heads_width()});
    };
    linear(stream, embedding, weights.v, out(1));
    if (source.squares) {
      linear(stream, embedding, weights.k, out(0));
      kernels::sum_of_squares(stream, out(0), source.squares.view().select(0, static_cast<int64_t>(block)));
      continue;
    }
    const TensorView raw = stream.scratch().tensor(weights_->dtype, out(0).shape());
    linear(stream, embedding, weights.k, raw);
    norm_keys(stream, raw, weights.norm, {}, out(0));
  }
}

// [M, A]; `squares` [M] where these are some of the heads. `out` may be `raw`.
void TextContext::norm_keys(Stream& stream, const TensorView& raw, const TensorView& weight, const TensorView& squares,
                            const TensorView& out) const {
  const TransformerConfig& config = weights_->config;
  const auto heads = [&](const TensorView& rows) {
    return one_sample(rows).split_axis(2, weights_->heads(), config.attention_head_dim);
  };
  const HeadSlot slot{{0, weights_->heads()}, heads(out)};
  kernels::rms_norm_rope(stream, {.x = heads(raw),
                                  .weight = weight,
                                  .cos = {},
                                  .sin = {},
                                  .eps = static_cast<float>(config.eps),
                                  .slots = {&slot, 1},
                                  .squares = squares,
                                  .all_heads = config.num_attention_heads,
                                  .implementation = {}});
}

// The norm is over the heads of all parts. Each rank adds up the squares of all blocks with the ranks of the other
// parts, however the blocks were dealt to the ranks of its own.
void TextContext::norm_after_sums(Stream& stream, encoders::PartialSum& sum) {
  std::vector<Tensor> all;
  for (const Source& source : sources_) {
    all.push_back(copy_of(source.squares));
    sum.add_up(stream, all.back().view().reshape({all.back().size(), 1}));
  }
  share(norms_, weights_->blocks.size(), false, [&](size_t block) {
    for (size_t i = 0; i < sources_.size(); ++i) {
      const Source& source = sources_[i];
      const TensorView keys = source.memory.view()
                                  .select(0, static_cast<int64_t>(block) * 2)
                                  .reshape({source.batch * source.rows, weights_->heads_width()});
      norm_keys(stream, keys, weights_->blocks[block].keys[i].norm,
                all[i].view().select(0, static_cast<int64_t>(block)), keys);
    }
  });
}

namespace {

// Rows of all sources; they differ only in what they are computed from.
int64_t all_rows(const TransformerConfig& config, const ContextRows& rows) {
  return rows.text + (config.image_dim ? rows.image : 0);
}

}  // namespace

int64_t text_context_bytes(const TransformerConfig& config, int64_t batch, const ContextRows& rows, DType dtype,
                           int tensor) {
  return config.block_count() * 2 * batch * all_rows(config, rows) * (config.inner_dim() / tensor) *
         static_cast<int64_t>(dtype_size(dtype));
}

int64_t text_context_making_bytes(const TransformerConfig& config, int64_t batch, const ContextRows& rows,
                                  DType dtype) {
  const auto size_of = [](DType type) { return static_cast<int64_t>(dtype_size(type)); };
  const DType operand = kernels::operand_dtype({nullptr, 1, 1, dtype, kernels::packed_layout(dtype)});
  const int64_t element = size_of(dtype), d = config.inner_dim(), image = config.image_dim.value_or(0);
  const auto as_operand = [&](int64_t width) {
    return operand == dtype ? 0 : (width + kOperandPadding) * size_of(operand);
  };
  // Per row: as given, converted, and hidden; for an image also with its position and after each norm.
  const int64_t text = (config.text_dim + d) * element + std::max(as_operand(config.text_dim), as_operand(d));
  const int64_t picture = (4 * image + d) * element + as_operand(image);
  // A block's keys before their norm.
  const int64_t keys = d * element + as_operand(d);
  const int64_t image_rows = config.image_dim ? rows.image : 0;
  return batch * all_rows(config, rows) * d * element +
         std::max({rows.text * text, image_rows * picture, batch * all_rows(config, rows) * keys});
}

}  // namespace zoetrope::wan
