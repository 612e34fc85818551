// From prompts to what cross-attention reads: cleaning, tokens, the text encoder, zero padding (wan.md section 5).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "models/encoders/partial_sum.h"
#include "pipeline/model_folder.h"

namespace zoetrope::pipeline {

struct PromptTokens {
  Tensor ids;                    // [prompts, rows] I32; a prompt's own come first
  std::vector<int64_t> lengths;  // tokens of each prompt, </s> included
};

struct PromptEmbeddings {
  Tensor rows;                   // [prompts, max_sequence_length, text_dim] F32; rows past a prompt's length are zero
  std::vector<int64_t> lengths;  // as of their tokens
};

// Tokens of the prompt and of the negative one, </s> included.
std::vector<int64_t> prompt_tokens(const ModelFolder& model, const GenerateOptions& options);

// Each cut to `rows` tokens.
PromptTokens tokenize_prompts(const ModelFolder& model, const std::vector<std::string>& prompts, int64_t rows);

// Runs the text encoder in `dtype`; its weights are let go before this returns. out [prompts, rows, text_dim] F32, zero
// past a prompt's length. `sum` where several ranks share the encoder: collective then. `tick` is called after every
// layer: it may throw to give up.
void encode_prompts(const ModelFolder& model, const PromptTokens& tokens, DType dtype, Stream& stream,
                    encoders::PartialSum* sum, const TensorView& out, const std::function<void()>& tick);

}  // namespace zoetrope::pipeline
