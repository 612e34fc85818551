#include "pipeline/prompt_ranks.h"

#include "base/error.h"
#include "comm/launcher.h"

namespace zoetrope::pipeline {

// Rank 0 encodes with all threads of its process while the others wait; then everybody has the rows. Reading the
// encoder's weights may take longer than comm_timeout, so rank 0 says after every layer that there is more to come.
PromptEmbeddings encode_prompts_over_ranks(const Stage& stage, comm::Communicator& world) {
  const GenerateOptions& options = stage.options;
  const GenerateCallbacks& callbacks = stage.callbacks;
  const trace::Timing::Scope scope(stage.timing, "Inference/Conditioning");
  std::vector<std::string> texts{options.prompt};
  if (stage.plan.guided) texts.push_back(options.negative_prompt);
  const auto count = static_cast<int64_t>(texts.size());
  PromptEmbeddings result;
  world.set_step("the prompt's encoding");
  uint8_t more = 1;
  const auto tell = [&] {
    if (world.size() > 1) world.broadcast(0, &more, 1, "prompt encoding");
  };
  if (world.rank() == 0) {
    Stream stream(comm::process_threads(options.threads), {stage.trace, 0, trace::kComputeLane});
    const auto tick = [&] {
      if (callbacks.cancelled && callbacks.cancelled())
        fail("interrupted while encoding the prompt; nothing was written");
      tell();
    };
    result = encode_prompts(stage.model, texts, options.max_sequence_length,
                            options.text_encoder_dtype == "bf16" ? DType::kBF16 : DType::kF32, stream, tick);
    more = 0;
    tell();
  } else {
    while (more != 0) tell();
    result.rows = Tensor(DType::kF32, {count, options.max_sequence_length, stage.model.text_encoder_config.d_model});
    result.lengths.resize(texts.size());
  }
  if (world.size() > 1) {
    world.broadcast(0, result.lengths.data(), result.lengths.size() * sizeof(int64_t), "prompt broadcast");
    world.broadcast(0, result.rows.data<void>(), result.rows.view().bytes(), "prompt broadcast");
  }
  return result;
}

}  // namespace zoetrope::pipeline
