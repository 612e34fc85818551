#include "pipeline_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <system_error>
#include <vector>

#include "pipeline/generate.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;

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

void add_inputs(pipeline::GenerateOptions& options, const fs::path& folder, const JsonObject& inputs,
                const fs::path& scratch) {
  if (const auto image = inputs.find<std::string>("image")) options.image = (folder / *image).string();
  if (const auto image = inputs.find<std::string>("last_image")) options.last_image = (folder / *image).string();
  const auto files = [&](const char* key) { return inputs.get<std::vector<std::string>>(key, {}); };
  if (const auto video = files("video"); !video.empty())
    options.control_video = folder_of_frames(folder, video, scratch / "video");
  if (const auto mask = files("mask"); !mask.empty()) options.mask = folder_of_frames(folder, mask, scratch / "mask");
  for (const std::string& image : files("reference_images"))
    options.reference_images.push_back((folder / image).string());
}

}  // namespace

Scratch::Scratch() : path(fs::temp_directory_path() / fmt::format("zoetrope_golden_{}", getpid())) {
  fs::create_directories(path);
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

pipeline::GenerateOptions run_options(const fs::path& checkpoint, const JsonObject& run, const Scratch& scratch) {
  const JsonObject arguments = run.object("arguments");
  pipeline::GenerateOptions options;
  options.model = checkpoint.string();
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
  if (run.has("inputs")) add_inputs(options, checkpoint, run.object("inputs"), scratch.path);
  options.output = (scratch.path / "clip.mp4").string();
  options.dump = scratch.path.string();
  return options;
}

void check_run(Report& report, const RecordedRun& run, const pipeline::GenerateOptions& options) {
  pipeline::generate(options);
  const auto ours = io::TensorFile::open(fs::path(options.dump) / "run.safetensors");
  const bool bf16 = options.dtype == DType::kBF16;
  for (const auto& item : run.recorded.tensors()) {
    const std::string& name = item.first;
    const std::string label = run.label + "." + name;
    if (!ours->contains(name)) {
      report.fail(label, "the run shows no such tensor");
      continue;
    }
    if (name == "frames_u8") {
      if (!bf16) report.check_levels(label, ours->tensor(name), run.recorded.tensor(name));
      continue;
    }
    const std::string own = noise_name(name, options.num_inference_steps);
    // A bf16 run is compared with the float32 recording, as its error was measured.
    const TensorView reference =
        bf16 && run.float32.contains(name) ? run.float32.tensor(name) : run.recorded.tensor(name);
    report.check(label, ours->tensor(name), reference,
                 bf16 ? bf16_tolerance(run.noise.of("bf16_vs_f32", own, run.noise_run))
                      : float32_tolerance(run.noise.of("f32_vs_f64", own, run.noise_run)));
  }
}

}  // namespace zoetrope::golden
