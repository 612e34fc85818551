#include "pipeline/prompt_context.h"

#include <algorithm>

#include "base/error.h"
#include "io/weights.h"
#include "models/encoders/umt5.h"
#include "text/prompt.h"

namespace zoetrope::pipeline {

std::vector<int64_t> prompt_tokens(const ModelFolder& model, const GenerateOptions& options) {
  std::vector<int64_t> counts;
  for (const std::string* prompt : {&options.prompt, &options.negative_prompt}) {
    const auto tokens = model.tokenizer.encode(text::clean_prompt(*prompt), options.max_sequence_length);
    counts.push_back(static_cast<int64_t>(tokens.size()));
  }
  return counts;
}

PromptTokens tokenize_prompts(const ModelFolder& model, const std::vector<std::string>& prompts, int64_t rows) {
  const auto count = static_cast<int64_t>(prompts.size());
  PromptTokens out{Tensor(DType::kI32, {count, rows}), {}};
  for (int64_t i = 0; i < count; ++i) {
    const std::string& prompt = prompts[static_cast<size_t>(i)];
    const std::vector<int32_t> own = model.tokenizer.encode(text::clean_prompt(prompt), rows);
    if (own.empty()) {
      fail("{}: makes no tokens of the prompt '{}'; it must close prompts with </s>", model.tokenizer_folder.string(),
           prompt);
    }
    ZT_CHECK(static_cast<int64_t>(own.size()) <= rows);
    out.lengths.push_back(static_cast<int64_t>(own.size()));
    std::copy(own.begin(), own.end(), out.ids.data<int32_t>() + i * rows);
  }
  return out;
}

// All prompts at once: the encoder reads and converts its weights in every pass.
void encode_prompts(const ModelFolder& model, const PromptTokens& tokens, DType dtype, Stream& stream,
                    encoders::PartialSum* sum, const TensorView& out, const std::function<void()>& tick) {
  encoders::TextEncoder(model.text_encoder.source(stream.team().size()), model.text_encoder_config, dtype, stream, sum)
      .encode_batch(tokens.ids, tokens.lengths, out, {}, tick);
}

}  // namespace zoetrope::pipeline
