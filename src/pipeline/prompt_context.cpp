#include "pipeline/prompt_context.h"

#include <algorithm>

#include "base/error.h"
#include "io/weights.h"
#include "models/encoders/umt5.h"
#include "pipeline/generate_options.h"
#include "text/prompt.h"

namespace zoetrope::pipeline {

std::shared_ptr<const PromptEmbeddings> KnownPrompts::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return key == key_ ? embeddings_ : nullptr;
}

void KnownPrompts::keep(const std::string& key, std::shared_ptr<const PromptEmbeddings> embeddings) {
  const std::lock_guard lock(mutex_);
  key_ = key;
  embeddings_ = std::move(embeddings);
}

int64_t KnownPrompts::bytes() const {
  const std::lock_guard lock(mutex_);
  return embeddings_ ? static_cast<int64_t>(embeddings_->rows.view().bytes()) : 0;
}

std::string prompts_of(const std::vector<GenerateOptions>& videos, const RunPlan& plan) {
  const GenerateOptions& first = videos.front();
  std::string text = fmt::format("{} {}", first.max_sequence_length, dtype_word(first.text_encoder_dtype));
  for (const GenerateOptions& video : videos) {
    text += fmt::format(" {}:{}", video.prompt.size(), video.prompt);
    if (plan.guided) text += fmt::format(" not {}:{}", video.negative_prompt.size(), video.negative_prompt);
  }
  return text;
}

std::vector<int64_t> token_counts(const RunPlan& plan) {
  std::vector<int64_t> counts;
  for (const std::vector<int32_t>& ids : plan.prompt_ids) counts.push_back(std::ssize(ids));
  return counts;
}

PromptTokens encoded_tokens(const RunPlan& plan, int64_t rows) {
  const int64_t count = plan.samples();
  PromptTokens out{Tensor(DType::kI32, {count, rows}), {}};
  for (int64_t i = 0; i < count; ++i) {
    const std::vector<int32_t>& ids = plan.prompt_ids[static_cast<size_t>(i)];
    ZT_CHECK(std::ssize(ids) <= rows);
    out.lengths.push_back(std::ssize(ids));
    std::copy(ids.begin(), ids.end(), out.ids.data<int32_t>() + i * rows);
  }
  return out;
}

PromptTokens prompt_tokens(const ModelFolder& model, const std::string& prompt, int64_t rows) {
  const std::vector<int32_t> ids = model.tokenizer.encode(text::clean_prompt(prompt), rows);
  PromptTokens out{Tensor(DType::kI32, {1, rows}), {std::ssize(ids)}};
  std::copy(ids.begin(), ids.end(), out.ids.data<int32_t>());
  return out;
}

// All prompts at once: the encoder reads and converts its weights in every pass.
void encode_prompts(const ModelFolder& model, const PromptTokens& tokens, DType dtype, Stream& stream,
                    encoders::PartialSum* sum, const TensorView& out, const std::function<void()>& tick) {
  encoders::TextEncoder(model.text_encoder.source(stream.team().size()), model.text_encoder_config, dtype, stream, sum)
      .encode_batch(tokens.ids, tokens.lengths, out, {}, tick);
}

}  // namespace zoetrope::pipeline
