// pipelines/*: complete runs from the prompt, and pictures or videos where a run has them: what they became, every
// step's latents, and the frames.
#include <fmt/format.h>

#include "pipeline/settings/dtype_word.h"
#include "pipeline_run.h"

namespace zoetrope::golden {

void run_pipeline_case(Report& report, const std::filesystem::path& folder) {
  const auto json = load_case(folder);
  const NoiseFloor noise(json);
  const JsonObject runs = json.object("runs");
  for (const std::string& name : runs.keys()) {
    const auto float32 = io::TensorFile::open(folder / (name + ".safetensors"));
    for (const char* dtype : {"float32", "bf16"}) {
      const std::string label = name + (std::string(dtype) == "bf16" ? "_bf16" : "");
      const std::filesystem::path file = folder / (label + ".safetensors");
      if (!std::filesystem::exists(file)) continue;
      const Scratch scratch;
      pipeline::GenerateOptions options = run_options(folder, runs.object(name), scratch);
      options.dtype = pipeline::dtype_of(dtype);
      check_run(report, {label, *io::TensorFile::open(file), *float32, noise, name}, options);
    }
  }
}

}  // namespace zoetrope::golden
