// transformer_*: one forward pass, every recorded tensor from the patch embedding to the output, float32 and bf16.
#include <map>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "attention/plan.h"
#include "base/error.h"
#include "device/stream.h"
#include "io/weights/checkpoint.h"
#include "io/weights/formula_testing.h"
#include "io/weights/tensor_file.h"
#include "io/weights/weights.h"
#include "kernels/rope/rope.h"
#include "models/testing/golden.h"
#include "models/wan/transformer/patchify.h"
#include "models/wan/transformer/recorded_face.h"
#include "models/wan/transformer/transformer.h"
#include "passes.h"
#include "report.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;

Tensor copy_of(const TensorView& view) {
  Tensor out(DType::kF32, view.shape());
  const std::vector<double> values = to_doubles(view);
  for (size_t i = 0; i < values.size(); ++i) out.data<float>()[i] = static_cast<float>(values[i]);
  return out;
}

}  // namespace

Values forward(const wan::TransformerConfig& config, std::shared_ptr<const io::Weights> source, DType dtype,
               const io::TensorFile& data) {
  Values seen;
  comm::run_ranks(1, [&](comm::Communicator& world) {
    Stream stream(available_threads());
    const TensorView latents = data.tensor("in.hidden_states"), text = data.tensor("in.encoder_hidden_states");
    const auto optional = [&](const char* name) { return data.contains(name) ? data.tensor(name) : TensorView(); };
    const TensorView image = optional("in.encoder_hidden_states_image"), control = optional("in.control_hidden_states");
    const Shape latent{latents.extent(2), latents.extent(3), latents.extent(4)};
    const golden::RecordedTimesteps timesteps(data.tensor("in.timestep"));
    attention::Problem problem;
    problem.batch = latents.extent(0);
    problem.tokens = wan::token_grid(config, latent).tokens();
    problem.heads = config.num_attention_heads;
    problem.head_dim = config.attention_head_dim;
    problem.dtype = dtype;
    attention::ContextAttention attention = attention::plan(problem, {}, world, stream);
    const auto weights = wan::TransformerWeights::load(config, std::move(source), dtype);
    wan::Transformer transformer(weights, stream);
    transformer.prepare(latent, problem.batch, attention, {.timesteps = static_cast<int64_t>(timesteps.values.size())});
    // What is seen sample by sample or frame by frame is joined.
    const Probe probe = [&](std::string_view name, const TensorView& value) {
      const auto [at, first] = seen.emplace(std::string(name), copy_of(value));
      if (!first) at->second = joined(at->second, copy_of(value));
    };
    transformer.set_context(text, {}, probe, image);
    std::vector<float> scales;
    if (control) {
      for (const double scale : to_doubles(data.tensor("in.control_hidden_states_scale")))
        scales.push_back(static_cast<float>(scale));
      transformer.set_control(control, scales);
    }
    Tensor face;
    if (config.animate()) {
      face = wan::testing::face_tokens(stream, *weights, data.tensor("in.face_pixel_values"), probe);
      transformer.set_animation(data.tensor("in.pose_hidden_states"), face);
    }
    Tensor tokens(dtype, {problem.batch, problem.tokens, config.patch_output_dim()});
    transformer.forward(latents, {timesteps.values, timesteps.index}, tokens, probe);
    for (const char* name : {"temb", "timestep_proj"}) seen[name] = timesteps.rows(seen.at(name));
    Tensor output(DType::kF32, {problem.batch, config.out_channels, latent[0], latent[1], latent[2]});
    wan::unpatchify(stream, tokens, config.patch_size, output);
    seen["output"] = std::move(output);
  });
  return seen;
}

namespace {

void check_rope(Report& report, const wan::TransformerConfig& config, const io::TensorFile& data, Deviation tolerance) {
  if (!data.contains("rope.cos")) return report.absent({"rope.cos", "rope.sin"});
  const TensorView latents = data.tensor("in.hidden_states");
  const wan::TokenGrid grid = wan::token_grid(config, {latents.extent(2), latents.extent(3), latents.extent(4)});
  const kernels::RopeTable table =
      kernels::make_rope_table(config.attention_head_dim, grid.frames, grid.height, grid.width, {0, grid.tokens()});
  for (const auto& [name, half] : {std::pair{"rope.cos", &table.cos}, std::pair{"rope.sin", &table.sin}}) {
    // The recording stores each value twice, for both members of its pair.
    Tensor whole(DType::kF32, {half->extent(0), 2 * half->extent(1)});
    for (int64_t i = 0; i < whole.size(); ++i) whole.data<float>()[i] = half->data<float>()[i / 2];
    report.check(name, whole, data.tensor(name), tolerance);
  }
}

void check_pass(Report& report, const std::string& prefix, const Values& ours, const io::TensorFile& data,
                const NoiseFloor& noise) {
  const bool bf16 = prefix == "bf16.";
  for (const auto& [name, info] : data.tensors()) {
    const bool wide = !bf16 && name.rfind("f64.", 0) == 0;
    if (name.rfind(prefix, 0) != 0 && !wide) continue;
    const std::string tensor = name.substr(wide ? 4 : prefix.size());
    const auto found = ours.find(tensor);
    if (found == ours.end()) {
      report.fail(name, "the engine shows no such tensor");
      continue;
    }
    // bf16 runs are compared with the float32 recording, as their error was measured.
    const std::string reference = bf16 && data.contains("f32." + tensor) ? "f32." + tensor : name;
    // What a bf16 model computes in float32 has no bf16 error.
    const Deviation rounded = noise.of("bf16_vs_f32", tensor);
    const Deviation tolerance =
        bf16 && rounded.rel_l2 > 0 ? bf16_tolerance(rounded) : float32_tolerance(noise.of("f32_vs_f64", tensor));
    const TensorView recorded = data.tensor(reference);
    TensorView mine = found->second;
    if (mine.size() == recorded.size() && mine.contiguous()) mine = mine.reshape(recorded.shape());
    report.check(name, mine, recorded, tolerance);
  }
  std::vector<std::string> absent;
  for (const auto& [tensor, value] : ours)
    if (!data.contains(prefix + tensor)) absent.push_back(prefix + tensor);
  report.absent(absent);
}

}  // namespace

void run_transformer_case(Report& report, const fs::path& root, const fs::path& folder) {
  const auto json = load_case(folder);
  const NoiseFloor noise(json);
  const fs::path checkpoint = root / json.get<std::string>("checkpoint");
  const auto config = wan::TransformerConfig::load(checkpoint / "config.json");
  const auto data = io::TensorFile::open(folder / "tensors.safetensors");
  const auto source = [&] {
    return std::make_shared<io::Weights>(
        json.get<bool>("procedural", false)
            ? io::procedural_source(checkpoint / "weights.json")
            : io::checkpoint_source(io::Checkpoint::open(checkpoint, "diffusion_pytorch_model")));
  };
  check_rope(report, config, *data, float32_tolerance(noise.of("f32_vs_f64", "rope")));
  check_pass(report, "f32.", forward(config, source(), DType::kF32, *data), *data, noise);
  check_pass(report, "bf16.", forward(config, source(), DType::kBF16, *data), *data, noise);
  if (!json.get<bool>("procedural", false) && fs::exists(checkpoint / "weights.json")) {
    // Both forms of the weights are there: the formula must give what the files hold.
    const auto formula = io::procedural_source(checkpoint / "weights.json");
    const io::Checkpoint files = io::Checkpoint::open(checkpoint, "diffusion_pytorch_model");
    for (const std::string& name : formula->names()) {
      Tensor made(DType::kF32, formula->info(name).shape);
      formula->read(name, made);
      report.check_equal("weights." + name, to_doubles(made), to_doubles(files.view(name)));
    }
  }
}

}  // namespace zoetrope::golden
