// The decoding stage of a run: latents to frames, over the ranks that share the rows of a frame, and frames to the
// output while later ones are still being decoded; and small previews between steps.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"
#include "zoetrope/video.h"

#include "pipeline/inputs/conditions.h"
#include "pipeline/outputs/dump.h"
#include "pipeline/records/journal.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/stages/denoise.h"
#include "pipeline/stages/model_weights.h"
#include "pipeline/stages/stage.h"

namespace zoetrope::pipeline {

// Which of the decoded frames are the output's: all of them, or those of a segment.
struct DecodedPart {
  int64_t first = 0;     // the place of its first frame in the output
  int64_t left_out = 0;  // decoded frames before that
  int64_t frames = 0;    // of the output
  bool last = true;      // of the video: what follows needs no rank but rank 0
  // Rank 0's: the last frames decoded [V, H, W, 3] F32 in [−1, 1], and all of them [1, 3, S, H, W] F32; or null.
  TensorView tail{}, decoded{};
};

// Where the frames of a video go: rank 0 has a writer, the others null.
struct FrameOutput {
  FrameSink* sink;
  TensorView floats, bytes;  // of a dump, [num_frames, H, W, 3] F32 and U8, or null
  DecodedPart part;
  // Called before the next video is decoded, so not of the last one; null where the video has more segments.
  std::function<void()> finish{};
};

// Where decoding is recorded, and where it goes on. On every rank but for what is rank 0's.
struct JournaledDecode {
  std::filesystem::path folder;
  Journal* journal;  // rank 0's
  int64_t segment;
  const DecodeState* from;  // this segment's; null: from its first frame
  // Rank 0's: the record of these latents, to which it is added how far their decoding is.
  std::function<RunRecord()> record;
};
// Gives each output the frames of a whole segment from the journal, which is rank 0's. Collective over `ranks`.
void replay_frames(const Stage& stage, comm::Communicator& ranks, const Journal* journal,
                   const std::vector<FrameOutput>& outputs);

// Collective over `world`. Every rank has the whole latents, [videos, C, T, h, w] F32, normalised as the transformer
// makes them; one video is decoded after another, into an output of its own. Ranks that do not decode return at once,
// the others when rank 0 has their last rows: nobody waits for the end of the writing. Gathers all traces. `shared` is
// for the ranks of this process.
void decode_frames(const Stage& stage, comm::Communicator& world, SharedVae& shared, const TensorView& latents,
                   const std::vector<FrameOutput>& outputs, const JournaledDecode* journaled = nullptr);

// Small frames of what a run is making, which rank 0 decodes between its steps while the others wait.
class Preview {
 public:
  // Nothing is loaded before the first preview; `decoder` is then held as long as this lives.
  Preview(const Stage& stage, const Conditions& conditions, comm::Communicator& world, SharedVae& decoder);
  ~Preview();

  // Collective, after every step; does nothing where none is due: at multiples of Request::preview, but not after the
  // last step, which the clip itself follows. `before`: steps of earlier segments. Of a batch the first video.
  void after(const Denoiser::StepDone& done, int64_t before);

 private:
  struct Decoder;
  void show(const Denoiser::StepDone& done, int64_t steps, const std::function<void()>& tick);

  const Stage& stage_;
  const Conditions& conditions_;
  comm::Communicator& world_;
  SharedVae& shared_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace zoetrope::pipeline
