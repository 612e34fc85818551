#include "pipeline/shared_vae.h"

#include <algorithm>

#include "zoetrope/communicator.h"

#include "comm/launcher.h"
#include "pipeline/generate_options.h"

namespace zoetrope::pipeline {

std::shared_ptr<const wan::VaeWeights> load_vae(const Stage& stage, SharedVae& shared, wan::VaeParts part) {
  const trace::Timing::Scope scope(stage.timing, "Load/VAE");
  return shared.get([&] {
    const int threads = comm::process_threads(stage.options.threads);
    auto made = std::make_shared<const wan::VaeWeights>(stage.model.vae_config,
                                                        std::make_shared<io::Weights>(stage.model.vae.source(threads)),
                                                        part, stage.options.vae_dtype);
    if (const io::Checkpoint* files = stage.model.vae.checkpoint()) files->require_unchanged();
    return made;
  });
}

int threads_of_each(const GenerateOptions& options, int ranks_here) {
  return std::max(1, comm::process_threads(options.threads) / ranks_here);
}

}  // namespace zoetrope::pipeline
