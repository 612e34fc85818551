#include "pipeline/planning/planned_run.h"

#include <algorithm>

#include "base/error.h"
#include "base/input_file.h"
#include "pipeline/inputs/given_inputs.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/model_files/comfy_folder.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/int8_budget.h"
#include "pipeline/model_files/known_models.h"
#include "pipeline/outputs/video_grid.h"
#include "pipeline/outputs/videos.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {
namespace {

// They change values, files and waiting, but not how much is stored or computed.
constexpr const char* kOfRunning[] = {"weights_seed",        "conditioning_scale", "seed",  "latents", "fps",
                                      "mask_padding_tokens", "comm_timeout",       "trace", "journal", "resume",
                                      "check_finite"};

// What blocks int8_layers=auto takes was measured of a model's own weights; all else follows from the configs.
ModelFolder opened_model(const GenerateOptions& options) {
  if (spends_measured_errors(options)) return ModelFolder::open(options);
  ModelFolder model = ModelFolder::open_random(options);
  model.use(options);
  return model;
}

// With the files that a run finds. Where it would miss one, the model is planned all the same if its configs are known.
GenerateOptions with_files(const GenerateOptions& given) {
  GenerateOptions options = given;
  try {
    options = with_found_files(given);
  } catch (const Error&) {
    if (given.model.empty() || !is_there(model_or_config(given.model) / "model_index.json")) throw;
  }
  const bool files_alone = options.model.empty() && !options.transformer.empty();
  const std::string known = files_alone ? model_of(options.transformer, options.transformer_2) : "";
  options.model = (files_alone ? config_folder() / known : model_or_config(options.model)).string();
  return options;
}

ModelFolder checked_model(const GenerateOptions& options) {
  ModelFolder model = opened_model(options);
  check_given_inputs(options, model);
  // Where nothing says how many videos there are, a batch is as many.
  if (options.num_videos > 1 || !options.prompts.empty() || (!options.grid.empty() && options.batch_size == 1))
    check_series(options, static_cast<size_t>(count_videos(options)));
  if (options.prompt.empty() && options.prompts.empty() && !options.negative_prompt.empty()) {
    fail("negative_prompt: its tokens are counted together with those of prompt; give that too, or leave both out");
  }
  return model;
}

std::pair<GenerateOptions, ModelFolder> opened(const GenerateOptions& given) {
  GenerateOptions options = with_files(given);
  ModelFolder model = checked_model(options);
  return {std::move(options), std::move(model)};
}

}  // namespace

PlannedRun::PlannedRun(const GenerateOptions& given) : PlannedRun(opened(given)) {}

PlannedRun::PlannedRun(std::pair<GenerateOptions, ModelFolder> given)
    : model(std::move(given.second)),
      options(with_choices(with_size_of_inputs(given.first, model), model)),
      plan(plan_run(options, model)),
      memory{options, model_configs(model)} {
  memory.configs.mapped = options.weights != WeightSource::kRandom;
  memory.share_of_first = plan.step_count.share_of_first();
  if (memory.configs.mapped) missing_files = use_stored_weights(options, model.folder, memory.configs);
  check_weight_memory(memory);
  if (!options.prompt.empty()) memory.prompt_tokens = plan.token_counts();
  if (options.grid.empty()) return;
  const int64_t videos = std::max(count_videos(options), options.batch_size);
  memory.grid_frames = VideoGrid::bytes(static_cast<size_t>(videos), options.num_frames, video_format(options));
}

void refuse_keys_of_running(const OptionSet& keys, const char* command) {
  for (const char* key : kOfRunning) {
    if (keys.origin(key) != kCommandLine) continue;
    fail("{}: means nothing to {}, which starts no run: neither memory nor time depend on it; leave it out", key,
         command);
  }
}

}  // namespace zoetrope::pipeline
