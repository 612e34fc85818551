#include "pipeline/prompt_ranks.h"

#include <algorithm>

#include "base/error.h"
#include "comm/launcher.h"
#include "pipeline/dtype_name.h"
#include "pipeline/finite.h"
#include "pipeline/pace.h"
#include "pipeline/partial_sum_ranks.h"
#include "tensor/finite.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kPace = "text encoder's pace";

// On all ranks alike, which have the same rows.
[[noreturn]] void fail_not_finite(const Stage& stage, const PromptEmbeddings& result, comm::Communicator& world) {
  const std::optional<std::string> weight =
      spoiled_weight(stage.model.text_encoder, dtype_of(stage.options.text_encoder_dtype), &world);
  const std::string cause = weight ? "from " + *weight : "though the text encoder's weights are finite";
  const char* names[] = {"prompt_embeds", "negative_prompt_embeds"};
  for (int64_t i = 0; i < result.rows.view().extent(0); ++i) {
    require_finite(result.rows.view().select(0, i),
                   fmt::format("before the first step, every rank: {}, {},", names[i], cause));
  }
  ZT_CHECK(false, "fail_not_finite() of finite rows");
}

}  // namespace

// Every rank has a part of every layer, computed with its own threads. What one wait waits for is at most half a layer
// of the slowest rank, reading it included: however long the whole takes, comm_timeout has to cover no more than that.
// Where rank 0 works alone, with the threads of its process, the others hear of every layer.
PromptEmbeddings encode_prompts_over_ranks(const Stage& stage, comm::Communicator& world) {
  const GenerateOptions& options = stage.options;
  const GenerateCallbacks& callbacks = stage.callbacks;
  const trace::Timing::Scope scope(stage.timing, "Inference/Conditioning");
  std::vector<std::string> texts{options.prompt};
  if (stage.plan.guided) texts.push_back(options.negative_prompt);
  world.set_step("the prompt's encoding");
  const bool shared = stage.layout.text_ranks > 1;
  const int here = shared ? world.ranks_in_this_process() : 1;
  PartialSumRanks sum(world);
  Pace pace(world, kPace);
  const auto tick = [&] {
    if (callbacks.cancelled && callbacks.cancelled())
      fail("interrupted while encoding the prompt; nothing was written");
    if (!shared) pace.still_working();
  };
  PromptTokens tokens = tokenize_prompts(stage.model, texts, options.max_sequence_length);
  PromptEmbeddings result{
      Tensor(DType::kF32, {std::ssize(texts), options.max_sequence_length, stage.model.text_encoder_config.d_model}),
      tokens.lengths};
  if (shared || world.rank() == 0) {
    Stream stream(std::max(1, comm::process_threads(options.threads) / here),
                  {stage.trace, world.rank(), trace::kComputeLane});
    encode_prompts(stage.model, tokens, dtype_of(options.text_encoder_dtype), stream, shared ? &sum : nullptr,
                   result.rows, tick);
    if (!shared) pace.done();
  } else {
    pace.wait();
  }
  if (const io::Checkpoint* files = stage.model.text_encoder.checkpoint()) files->require_unchanged();
  // All have the same rows but for the last bits where processes run on different kinds of CPU; everything after this
  // counts on the same bits.
  if (world.size() > 1) world.broadcast(0, result.rows.data<void>(), result.rows.view().bytes(), "prompt broadcast");
  if (options.check_finite && first_non_finite(result.rows)) fail_not_finite(stage, result, world);
  return result;
}

}  // namespace zoetrope::pipeline
