// The prompt stage of a run over its ranks: afterwards every rank has the rows that cross-attention reads.
#pragma once

#include <memory>

#include "zoetrope/communicator.h"

#include "pipeline/stages/prompt_context.h"
#include "pipeline/stages/stage.h"

namespace zoetrope::pipeline {

// Collective over `world`. Where every rank has `known` embeddings the text encoder does not run.
std::shared_ptr<const PromptEmbeddings> encode_prompts_over_ranks(const Stage& stage, comm::Communicator& world,
                                                                  std::shared_ptr<const PromptEmbeddings> known = {});

}  // namespace zoetrope::pipeline
