// From prompts to what cross-attention reads: cleaning, tokens, the text encoder, zero padding (wan.md section 5).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "models/encoders/partial_sum.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/planning/plan.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

struct PromptTokens {
  Tensor ids;                    // [prompts, rows] I32; a prompt's own come first
  std::vector<int64_t> lengths;  // tokens of each prompt, </s> included
};

struct PromptEmbeddings {
  Tensor rows;                   // [prompts, max_sequence_length, text_dim] F32; rows past a prompt's length are zero
  std::vector<int64_t> lengths;  // as of their tokens
};

// The embeddings of the last run, which the next one uses where it has the same prompts.
class KnownPrompts {
 public:
  // `key`: prompts_of() a run. Null where others are known.
  std::shared_ptr<const PromptEmbeddings> find(const std::string& key) const;
  void keep(const std::string& key, std::shared_ptr<const PromptEmbeddings> embeddings);
  int64_t bytes() const;

 private:
  mutable std::mutex mutex_;
  std::string key_;
  std::shared_ptr<const PromptEmbeddings> embeddings_;
};

// Another string for every run with other embeddings of the same model. `videos`: of its batch.
std::string prompts_of(const std::vector<GenerateOptions>& videos, const RunPlan& plan);

// Of the prompts that the text encoder sees, one per sample of the transformer. At most `rows` each.
PromptTokens encoded_tokens(const RunPlan& plan, int64_t rows);
// Of prompts outside of a run, cleaned as there.
PromptTokens prompt_tokens(const ModelFolder& model, const std::vector<std::string>& prompts, int64_t rows);

// Runs the text encoder in `dtype`; its weights are released before this returns. out [prompts, rows, text_dim] F32,
// zero past a prompt's length. `sum` where several ranks share the encoder: collective then. `tick` is called after
// every layer: it may throw to give up.
void encode_prompts(const ModelFolder& model, const PromptTokens& tokens, DType dtype, Stream& stream,
                    encoders::PartialSum* sum, const TensorView& out, const std::function<void()>& tick);

}  // namespace zoetrope::pipeline
