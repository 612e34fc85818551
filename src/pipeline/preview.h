// What a run is making, shown between its steps: few small frames, which rank 0 decodes while the others wait.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "zoetrope/communicator.h"

#include "models/wan/vae/vae.h"
#include "pipeline/denoise.h"
#include "pipeline/model_weights.h"
#include "pipeline/stage.h"

namespace zoetrope::pipeline {

class Preview {
 public:
  // Nothing is loaded before the first preview; `decoder` is then held as long as this lives.
  Preview(const Stage& stage, comm::Communicator& world, SharedVae& decoder)
      : stage_(stage), world_(world), shared_(decoder) {}

  // Collective, after every step; does nothing where none is due: at multiples of Request::preview, but not after the
  // last step, which the clip itself follows. `before`: steps of earlier segments. Of a batch the first video.
  void after(const Denoiser::StepDone& done, int64_t before);

 private:
  void show(const Denoiser::StepDone& done, int64_t steps, const std::function<void()>& tick);

  const Stage& stage_;
  comm::Communicator& world_;
  SharedVae& shared_;
  std::optional<wan::VaeDecoder> decoder_;
};

}  // namespace zoetrope::pipeline
