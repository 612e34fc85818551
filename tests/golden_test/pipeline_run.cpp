#include "pipeline_run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <system_error>
#include <vector>

#include "device/thread_team.h"
#include "io/media/video.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/vae.h"
#include "pipeline/generate.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;

// Which of the recorded noise entries a tensor goes by.
std::string noise_name(const std::string& tensor, int64_t steps) {
  if (tensor == "velocity.0" || tensor == "segment.0.velocity.0") return "first_velocity";
  if (tensor == "frames") return "frames";
  if (tensor == fmt::format("latents.{}", steps - 1)) return "final_latents";
  return tensor;  // none of its own
}

double relative_error(const TensorView& values, const TensorView& reference) {
  const std::vector<double> a = to_doubles(values), b = to_doubles(reference);
  double error = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(error / norm);
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
  const auto frames = [&](const char* key) {
    const std::vector<std::string> listed = files(key);
    return listed.empty() ? std::string() : folder_of_frames(folder, listed, scratch / key);
  };
  options.pose_video = frames("pose_video");
  options.face_video = frames("face_video");
  options.background_video = frames("background_video");
  if (const std::string mask = frames("mask_video"); !mask.empty()) options.mask = mask;
  for (const std::string& image : files("reference_images"))
    options.reference_images.push_back((folder / image).string());
}

// The frames [F, H, W, 3] that our decoder makes of recorded latents, as a dump has them.
Tensor decoded(const fs::path& vae, const TensorView& latents, const Shape& frames) {
  const auto config = wan::VaeConfig::load(vae / "config.json");
  const auto weights = std::make_shared<wan::VaeWeights>(
      config, io::checkpoint_source(io::Checkpoint::open(vae, "diffusion_pytorch_model")));
  // Those of reference images come first.
  const int64_t all = latents.extent(2);
  const TensorView video = latents.slice(2, all - config.latent_frames(frames[0]), all);
  const Tensor raw(DType::kF32, video.shape());
  Tensor made(DType::kF32, frames);
  wan::denormalize_latents(config, video, raw);
  Stream stream(available_threads());
  const wan::FrameCallback sink = [&](int64_t first, const TensorView& some) {
    const std::vector<double> values = to_doubles(some);
    float* to = made.view().select(0, first).data<float>();
    for (const double x : values) *to++ = std::clamp(0.5f * static_cast<float>(x) + 0.5f, 0.0f, 1.0f);
  };
  wan::VaeDecoder(weights).decode(stream, raw, sink);
  return made;
}

Tensor bytes_of(const Tensor& frames) {
  Tensor bytes(DType::kU8, frames.shape());
  const std::span<const float> values(frames.data<float>(), static_cast<size_t>(frames.size()));
  io::to_u8(PixelRounding::kTruncate, values, bytes.data<uint8_t>());
  return bytes;
}

// A decoder may have pixels that follow from the direction of a vector which is almost zero; of the recorded VAEs of
// three channels that of wan21_vace has one: latents that are 1e-5 apart there have frames that are 0.04 apart, on CPUs
// whose latents fall on the other side of it. So where frames are further apart than their tolerance, what the decoder
// makes of the recorded latents is held against them; our latents have tolerances of their own.
bool decoder_is_judged_alone(const TensorView& frames, const TensorView& reference, const Deviation& tolerance) {
  return relative_error(frames, reference) > tolerance.rel_l2;
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
  options.num_frames = arguments.get<int64_t>("num_frames", options.num_frames);  // Animate: those of pose_video
  options.num_inference_steps = arguments.get<int64_t>("num_inference_steps");
  options.guidance_scale = arguments.get<double>("guidance_scale");
  options.guidance_scale_2 = arguments.find<double>("guidance_scale_2");
  options.max_sequence_length = arguments.get<int64_t>("max_sequence_length", options.max_sequence_length);
  options.conditioning_scale = arguments.get<std::vector<double>>("conditioning_scale", {});
  options.segment_frame_length = arguments.get<int64_t>("segment_frame_length", options.segment_frame_length);
  options.prev_segment_conditioning_frames =
      arguments.get<int64_t>("prev_segment_conditioning_frames", options.prev_segment_conditioning_frames);
  if (arguments.get<std::string>("mode", "animate") == "replace") options.mode = AnimateMode::kReplace;
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
  const std::string final_latents = fmt::format("latents.{}", options.num_inference_steps - 1);
  Tensor frames, bytes;  // of the decoder alone
  if (!bf16 && run.recorded.contains("frames") && run.recorded.contains(final_latents) && ours->contains("frames")) {
    const Deviation tolerance = float32_tolerance(run.noise.of("f32_vs_f64", "frames", run.noise_run));
    const TensorView recorded = run.recorded.tensor("frames");
    if (decoder_is_judged_alone(ours->tensor("frames"), recorded, tolerance)) {
      const fs::path vae = fs::path(options.model) / "vae";
      frames = decoded(vae, run.recorded.tensor(final_latents), recorded.shape());
      bytes = bytes_of(frames);
      // And the run's frames are those of its latents.
      report.check(run.label + ".frames of our latents", ours->tensor("frames"),
                   decoded(vae, ours->tensor(final_latents), recorded.shape()), tolerance);
    }
  }
  for (const auto& item : run.recorded.tensors()) {
    const std::string& name = item.first;
    const std::string label = run.label + "." + name;
    if (!ours->contains(name)) {
      report.fail(label, "the run shows no such tensor");
      continue;
    }
    if (name.ends_with("_u8")) {
      // Inputs as they were resized are the same bytes.
      if (name != "frames_u8")
        report.check_equal(label, to_doubles(ours->tensor(name)), to_doubles(run.recorded.tensor(name)));
      else if (!bf16)
        report.check_levels(label, frames ? TensorView(bytes) : ours->tensor(name), run.recorded.tensor(name));
      continue;
    }
    const std::string own = noise_name(name, options.num_inference_steps);
    // A bf16 run is compared with the float32 recording, as its error was measured.
    TensorView mine = name == "frames" && frames ? frames.view() : ours->tensor(name);
    if (mine.size() == run.recorded.tensor(name).size()) mine = mine.reshape(run.recorded.tensor(name).shape());
    const TensorView reference =
        bf16 && run.float32.contains(name) ? run.float32.tensor(name) : run.recorded.tensor(name);
    const Deviation float32 = float32_tolerance(run.noise.of("f32_vs_f64", own, run.noise_run));
    // The error of the recorded bf16 run. What it computes in float32 has none.
    const double rounded =
        bf16 && run.float32.contains(name) ? relative_error(run.recorded.tensor(name), reference) : 0;
    report.check(label, mine, reference, rounded > 0 ? bf16_tolerance({rounded, 0}) : float32);
  }
}

}  // namespace zoetrope::golden
