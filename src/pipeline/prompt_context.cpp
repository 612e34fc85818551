#include "pipeline/prompt_context.h"

#include "base/error.h"
#include "io/weights.h"
#include "models/wan/text/prompt.h"
#include "models/wan/umt5/umt5.h"

namespace zoetrope::pipeline {

PromptEmbeddings encode_prompts(const ModelFolder& model, const std::vector<std::string>& prompts, int64_t rows,
                                DType dtype, Stream& stream, const std::function<void()>& tick) {
  const int64_t width = model.text_encoder_config.d_model;
  PromptEmbeddings out;
  out.rows = Tensor(DType::kF32, {static_cast<int64_t>(prompts.size()), rows, width});
  wan::TextEncoder encoder(io::checkpoint_source(model.text_encoder), model.text_encoder_config, dtype, stream);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<int32_t> ids = model.tokenizer.encode(wan::clean_prompt(prompts[i]), rows);
    const auto length = static_cast<int64_t>(ids.size());
    if (length == 0) {
      fail("{}: makes no tokens of the prompt '{}'; it must close prompts with </s>",
           (model.folder / "tokenizer").string(), prompts[i]);
    }
    ZT_CHECK(length <= rows);
    out.lengths.push_back(length);
    encoder.encode(ids, out.rows.view().select(0, static_cast<int64_t>(i)).slice(0, 0, length),
                   [&](std::string_view, const TensorView&) { tick(); });
  }
  return out;
}

}  // namespace zoetrope::pipeline
