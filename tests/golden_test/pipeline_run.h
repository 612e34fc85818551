// One recorded run of a pipeline, made again and compared tensor by tensor: what cases of checkpoints and cases of
// LoRA files have in common.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.h"
#include "io/weights/tensor_file.h"
#include "pipeline/settings/generate_options.h"
#include "report.h"

namespace zoetrope::golden {

// A folder that is gone afterwards, whatever happens.
struct Scratch {
  Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  const std::filesystem::path path;
};

// What a recorded run was asked for: `run` has "arguments" and "generator_seed", and "inputs" where there are pictures
// or videos. Output and dump are in `scratch`.
pipeline::GenerateOptions run_options(const std::filesystem::path& checkpoint, const JsonObject& run,
                                      const Scratch& scratch);

// Runs with the options, in float32 or bf16 as they say, and holds the dump against `recorded`: every tensor of it,
// each label behind `label` and a dot. `float32` is the recording in float32, by which a bf16 run is measured; `noise`
// of the run `noise_run`.
struct RecordedRun {
  std::string label;
  const io::TensorFile& recorded;
  const io::TensorFile& float32;
  const NoiseFloor& noise;
  std::string noise_run;
};
void check_run(Report& report, const RecordedRun& run, const pipeline::GenerateOptions& options);

}  // namespace zoetrope::golden
