// loras: runs of a recorded checkpoint without and with each LoRA file of the case, at the strength that it names.
#include <fmt/format.h>

#include "base/error.h"
#include "pipeline_run.h"

namespace zoetrope::golden {

// The case measures no noise of its own: its runs have the tolerance of the checkpoint's first run.
void run_lora_case(Report& report, const std::filesystem::path& root, const std::filesystem::path& folder) {
  constexpr const char* kBase = "base";
  const auto json = load_case(folder);
  const std::filesystem::path checkpoint = root / json.get<std::string>("base_checkpoint");
  const auto base_case = load_case(checkpoint);
  const NoiseFloor noise(base_case);
  const std::string noise_run = base_case.object("runs").keys().front();
  const auto strength = json.get<double>("adapter_scale");
  std::vector<std::string> names = json.object("effect_on_final_latents").keys();
  names.emplace_back(kBase);
  const auto output = [&](const std::string& name) {
    return io::TensorFile::open(folder / fmt::format("output_{}.safetensors", name));
  };
  for (const std::string& name : names) {
    const auto recorded = output(name);
    const Scratch scratch;
    pipeline::GenerateOptions options = run_options(checkpoint, json, scratch);
    options.dtype = DType::kF32;
    if (name != kBase) options.lora = {{folder / (name + ".safetensors"), strength}};
    check_run(report, {"output_" + name, *recorded, *recorded, noise, noise_run}, options);
  }
}

}  // namespace zoetrope::golden
