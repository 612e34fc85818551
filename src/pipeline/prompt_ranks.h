// The prompt stage of a run over its ranks: afterwards every rank has the rows that cross-attention reads.
#pragma once

#include "zoetrope/communicator.h"

#include "pipeline/prompt_context.h"
#include "pipeline/stage.h"

namespace zoetrope::pipeline {

// Collective over `world`.
PromptEmbeddings encode_prompts_over_ranks(const Stage& stage, comm::Communicator& world);

}  // namespace zoetrope::pipeline
