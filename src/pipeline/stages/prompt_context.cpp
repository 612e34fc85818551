#include "pipeline/stages/prompt_context.h"

#include <algorithm>

#include "base/error.h"
#include "io/weights/weights.h"
#include "models/encoders/umt5.h"
#include "pipeline/settings/generate_options.h"
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

namespace {

PromptTokens padded(const std::vector<std::vector<int32_t>>& prompts, int64_t rows) {
  PromptTokens out{Tensor(DType::kI32, {std::ssize(prompts), rows}), {}};
  int32_t* to = out.ids.data<int32_t>();
  for (const std::vector<int32_t>& ids : prompts) {
    ZT_CHECK(std::ssize(ids) <= rows);
    out.lengths.push_back(std::ssize(ids));
    std::copy(ids.begin(), ids.end(), to);
    to += rows;
  }
  return out;
}

}  // namespace

PromptTokens encoded_tokens(const RunPlan& plan, int64_t rows) {
  return padded({plan.prompt_ids.begin(), plan.prompt_ids.begin() + plan.samples()}, rows);
}

PromptTokens prompt_tokens(const ModelFolder& model, const std::vector<std::string>& prompts, int64_t rows) {
  std::vector<std::vector<int32_t>> ids;
  for (const std::string& prompt : prompts) ids.push_back(model.tokenizer.encode(text::clean_prompt(prompt), rows));
  return padded(ids, rows);
}

// All prompts at once: the encoder reads and converts its weights in every pass.
void encode_prompts(const ModelFolder& model, const PromptTokens& tokens, DType dtype, Stream& stream,
                    encoders::PartialSum* sum, const TensorView& out, const std::function<void()>& tick) {
  encoders::TextEncoder(model.text_encoder.source(stream.team().size()), model.text_encoder_config, dtype, stream, sum)
      .encode_batch(tokens.ids, tokens.lengths, out, {}, tick);
}

}  // namespace zoetrope::pipeline
