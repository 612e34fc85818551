// From prompts to what cross-attention reads: cleaning, tokens, the text encoder, zero padding (wan.md section 5).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "models/wan/partial_sum.h"
#include "pipeline/model_folder.h"

namespace zoetrope::pipeline {

struct PromptEmbeddings {
  Tensor rows;                   // [prompts, max_sequence_length, text_dim] F32; rows past a prompt's length are zero
  std::vector<int64_t> lengths;  // tokens of each prompt, </s> included
};

// Tokens of the prompt and of the negative one, </s> included.
std::vector<int64_t> prompt_tokens(const ModelFolder& model, const GenerateOptions& options);

// Runs the text encoder in `dtype`; its weights are let go before this returns. `sum` where several ranks share the
// encoder: collective then. `tick` is called after every layer: it may throw to give up.
PromptEmbeddings encode_prompts(const ModelFolder& model, const std::vector<std::string>& prompts, int64_t rows,
                                DType dtype, Stream& stream, wan::PartialSum* sum, const std::function<void()>& tick);

}  // namespace zoetrope::pipeline
