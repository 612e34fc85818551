// pipelines/*: complete runs from the prompt, and pictures or videos where a run has them: what they became, every
// step's latents, and the frames.
#include <unistd.h>

#include "zoetrope/generate.h"

#include "base/error.h"
#include "io/safetensors.h"
#include "report.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;

// A folder that is gone afterwards, whatever happens.
struct Scratch {
  const fs::path path = fs::temp_directory_path() / fmt::format("zoetrope_golden_{}", getpid());
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

// Which of the recorded noise entries a tensor goes by.
std::string noise_name(const std::string& tensor, int64_t steps) {
  if (tensor == "velocity.0") return "first_velocity";
  if (tensor == "frames") return "frames";
  if (tensor == fmt::format("latents.{}", steps - 1)) return "final_latents";
  return tensor;  // none of its own
}

// Recorded runs list a video's frames one by one; the folder of their copies is what a user would give.
std::string folder_of_frames(const fs::path& folder, const std::vector<std::string>& files, const fs::path& to) {
  fs::create_directories(to);
  for (const std::string& file : files) fs::copy(folder / file, to / fs::path(file).filename());
  return to.string();
}

void add_inputs(GenerateOptions& options, const fs::path& folder, const io::JsonObject& inputs,
                const fs::path& scratch) {
  if (const auto image = inputs.find<std::string>("image")) options.image = (folder / *image).string();
  if (const auto image = inputs.find<std::string>("last_image")) options.last_image = (folder / *image).string();
  const auto files = [&](const char* key) { return inputs.get<std::vector<std::string>>(key, {}); };
  if (const auto video = files("video"); !video.empty())
    options.control_video = folder_of_frames(folder, video, scratch / "video");
  if (const auto mask = files("mask"); !mask.empty()) options.mask = folder_of_frames(folder, mask, scratch / "mask");
  for (const std::string& image : files("reference_images"))
    options.reference_images +=
        fmt::format("{}{}", options.reference_images.empty() ? "" : ",", (folder / image).string());
}

GenerateOptions run_options(const fs::path& folder, const io::JsonObject& run, const fs::path& scratch) {
  const io::JsonObject arguments = run.object("arguments");
  GenerateOptions options;
  options.model = folder.string();
  options.prompt = arguments.get<std::string>("prompt");
  options.negative_prompt = arguments.get<std::string>("negative_prompt", "");
  options.height = arguments.get<int64_t>("height");
  options.width = arguments.get<int64_t>("width");
  options.num_frames = arguments.get<int64_t>("num_frames");
  options.num_inference_steps = arguments.get<int64_t>("num_inference_steps");
  options.guidance_scale = arguments.get<double>("guidance_scale");
  options.guidance_scale_2 = arguments.find<double>("guidance_scale_2");
  options.max_sequence_length = arguments.get<int64_t>("max_sequence_length", options.max_sequence_length);
  options.conditioning_scale = arguments.get<std::vector<double>>("conditioning_scale", {});
  options.seed = run.get<int64_t>("generator_seed");
  add_inputs(options, folder, run.object("inputs"), scratch);
  options.output = (scratch / "clip.mp4").string();
  options.dump = scratch.string();
  return options;
}

void check_run(Report& report, const std::string& run, const io::SafetensorsFile& recorded,
               const io::SafetensorsFile& float32, const io::SafetensorsFile& ours, const NoiseFloor& noise,
               int64_t steps) {
  const bool bf16 = run.size() > 5 && run.substr(run.size() - 5) == "_bf16";
  const std::string floor_run = bf16 ? run.substr(0, run.size() - 5) : run;
  for (const auto& [name, info] : recorded.tensors()) {
    const std::string label = run + "." + name;
    if (!ours.contains(name)) {
      report.fail(label, "the run shows no such tensor");
      continue;
    }
    if (name == "frames_u8") {
      if (!bf16) report.check_levels(label, ours.tensor(name), recorded.tensor(name));
      continue;
    }
    const std::string own = noise_name(name, steps);
    // A bf16 run is held against the float32 recording, as its error was measured.
    const TensorView reference = bf16 && float32.contains(name) ? float32.tensor(name) : recorded.tensor(name);
    report.check(label, ours.tensor(name), reference,
                 bf16 ? bf16_tolerance(noise.of("bf16_vs_f32", own, floor_run))
                      : float32_tolerance(noise.of("f32_vs_f64", own, floor_run)));
  }
}

}  // namespace

void run_pipeline_case(Report& report, const fs::path& folder) {
  const auto json = load_case(folder);
  const NoiseFloor noise(json);
  const io::JsonObject runs = json.object("runs");
  for (const std::string& name : runs.keys()) {
    const io::JsonObject run = runs.object(name);
    const auto float32 = io::SafetensorsFile::open(folder / (name + ".safetensors"));
    for (const char* dtype : {"float32", "bf16"}) {
      const bool bf16 = std::string(dtype) == "bf16";
      const fs::path file = folder / (name + (bf16 ? "_bf16" : "") + ".safetensors");
      if (!fs::exists(file)) continue;
      const Scratch scratch;
      fs::create_directories(scratch.path);
      GenerateOptions options = run_options(folder, run, scratch.path);
      options.dtype = dtype;
      generate(options);
      const auto ours = io::SafetensorsFile::open(scratch.path / "run.safetensors");
      check_run(report, name + (bf16 ? "_bf16" : ""), *io::SafetensorsFile::open(file), *float32, *ours, noise,
                options.num_inference_steps);
    }
  }
}

}  // namespace zoetrope::golden
