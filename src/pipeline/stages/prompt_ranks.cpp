#include "pipeline/stages/prompt_ranks.h"

#include <cstring>

#include "base/cancel.h"
#include "base/error.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/partial_sum_ranks.h"
#include "pipeline/ranks/rank_heartbeat.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/stages/finite.h"
#include "pipeline/stages/phases.h"
#include "tensor/finite.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kHeartbeat = "heartbeat of the text encoder";

// On all ranks alike, which have the same rows.
[[noreturn]] void fail_not_finite(const Stage& stage, const PromptEmbeddings& result, comm::Communicator& world) {
  const std::optional<std::string> weight =
      spoiled_weight(stage.model.text_encoder, stage.options.text_encoder_dtype, &world);
  const std::string cause = weight ? "from " + *weight : "though the text encoder's weights are finite";
  const char* names[] = {"prompt_embeds", "negative_prompt_embeds"};
  for (int64_t i = 0; i < result.rows.view().extent(0); ++i) {
    require_finite(result.rows.view().select(0, i),
                   fmt::format("before the first step, every rank: {}, {},", names[i / stage.plan.videos], cause));
  }
  ZT_CHECK(false, "fail_not_finite() of finite rows");
}

}  // namespace

// Every rank has a part of every layer, computed with its own threads. What one wait waits for is at most half a layer
// of the slowest rank, reading it included: however long the whole takes, comm_timeout has to cover no more than that.
// Where rank 0 works alone, with all threads of its process, the others receive a heartbeat per layer.
std::shared_ptr<const PromptEmbeddings> encode_prompts_over_ranks(const Stage& stage, comm::Communicator& world,
                                                                  std::shared_ptr<const PromptEmbeddings> known) {
  const GenerateOptions& options = stage.options;
  const trace::Timing::Scope scope(stage.timing, phases::kTextEncoder);
  world.set_step("the prompt's encoding");
  const bool may_be_known = options.keep_weights != KeepWeights::kNone;
  const bool all_know = may_be_known && on_every_rank(world, known != nullptr);
  if (all_know && world.ranks_in_this_process() == world.size()) return known;
  const bool shared = stage.layout.text_ranks > 1;
  const int here = shared ? world.ranks_in_this_process() : 1;
  PartialSumRanks sum(world, PartialSumRanks::kTextEncoder);
  RankHeartbeat heartbeat(world, kHeartbeat);
  const auto tick = [&] {
    stop_if_cancelled(stage.callbacks.cancelled, "while encoding the prompt");
    if (!shared) heartbeat.beat();
  };
  const PromptTokens tokens = encoded_tokens(stage.plan, options.max_sequence_length);
  auto made = std::make_shared<PromptEmbeddings>();
  PromptEmbeddings& result = *made;
  result.rows = Tensor(
      DType::kF32, {std::ssize(tokens.lengths), options.max_sequence_length, stage.model.text_encoder_config.d_model});
  result.lengths = tokens.lengths;
  if (all_know) {
    std::memcpy(result.rows.view().raw(), known->rows.view().raw(), result.rows.view().bytes());
  } else if (shared || world.rank() == 0) {
    Stream stream(stage.threads_of_each(here), {stage.trace, world.rank(), trace::kComputeLane});
    encode_prompts(stage.model, tokens, options.text_encoder_dtype, stream, shared ? &sum : nullptr, result.rows, tick);
    if (!shared) heartbeat.done();
  } else {
    heartbeat.wait();
  }
  if (const io::Checkpoint* files = stage.model.text_encoder.checkpoint()) files->require_unchanged();
  // All have the same rows but for the last bits where processes run on different kinds of CPU; everything after this
  // counts on the same bits.
  if (world.size() > 1) world.broadcast(0, result.rows.data<void>(), result.rows.view().bytes(), "prompt broadcast");
  if (options.check_finite && first_non_finite(result.rows)) fail_not_finite(stage, result, world);
  return made;
}

}  // namespace zoetrope::pipeline
