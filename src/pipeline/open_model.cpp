// What the runs of a model share.
#include <algorithm>

#include "io/media/video.h"
#include "pipeline/planning/run_workload.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/run.h"
#include "pipeline/settings/generate_options.h"
#include "trace/resident.h"

namespace zoetrope::pipeline {
namespace {

ModelFolder checked_model(const GenerateOptions& options) {
  check_model_options(options);
  for (const std::string& file : {options.output, options.grid})
    io::load_writer_of(file);  // before OpenModel::resident
  return ModelFolder::open(options);
}

}  // namespace

OpenModel::OpenModel(const GenerateOptions& given)
    : options(given), folder(checked_model(given)), memory{options, model_configs(folder)} {
  check_weight_memory(memory);
  keep(options.keep_weights);
}

void OpenModel::keep(KeepWeights weights) {
  experts.keep(weights != KeepWeights::kNone);
  for (SharedVae* half : {&vae_encoder, &vae_decoder}) half->keep(weights == KeepWeights::kAll);
}

void OpenModel::release_weights() {
  prompts.keep({}, nullptr);
  experts.release_kept();
  for (SharedVae* half : {&vae_encoder, &vae_decoder}) half->release_kept();
}

int64_t OpenModel::of_others() {
  const planner::Bytes weights = [&] {
    const std::lock_guard lock(loading_);
    return kept_bytes(loaded_.value_or(memory), {experts.allocated(), vae_decoder.known(), vae_encoder.known()});
  }();
  return std::max<int64_t>(0, trace::allocated_bytes() - allocated - prompts.bytes() - weights.count());
}

void OpenModel::note_loaded(const MemoryQuestion& question) {
  const std::lock_guard lock(loading_);
  loaded_ = question;
}

}  // namespace zoetrope::pipeline
