// zoetrope inspect: what is in a checkpoint folder, and what is missing or unexpected.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "cli/command.h"
#include "io/checkpoint.h"
#include "models/wan/config.h"
#include "models/wan/tensor_list.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;

struct Findings {
  int64_t missing = 0;
  int64_t unexpected = 0;
  int64_t misshapen = 0;
};

constexpr int64_t kMostNames = 8;

void print_name(int64_t count, const char* what, const std::string& detail) {
  if (count <= kMostNames) {
    fmt::print("    {}: {}\n", what, detail);
  } else if (count == kMostNames + 1) {
    fmt::print("    {}: … and more\n", what);
  }
}

Findings compare(const io::Checkpoint& checkpoint, const wan::TensorList& expected) {
  Findings findings;
  std::set<std::string> known;
  for (const wan::TensorSpec& spec : expected) {
    known.insert(spec.name);
    const std::string name = wan::stored_name(checkpoint, spec.name);
    if (!checkpoint.contains(name)) {
      print_name(++findings.missing, "missing", fmt::format("{} {}", spec.name, spec.shape.to_string()));
      continue;
    }
    const Shape& shape = checkpoint.info(name).shape;
    if (!(shape == spec.shape)) {
      print_name(++findings.misshapen, "wrong shape",
                 fmt::format("{} is {}, the config says {}", name, shape.to_string(), spec.shape.to_string()));
    }
  }
  for (const std::string& name : checkpoint.names()) {
    if (known.count(name) == 0 && !wan::is_ignored_tensor(name)) print_name(++findings.unexpected, "unexpected", name);
  }
  return findings;
}

bool inspect_component(const fs::path& folder, const std::string& name, const char* stem,
                       const wan::TensorList& expected) {
  const io::Checkpoint checkpoint = io::Checkpoint::open(folder / name, stem);
  std::string dtypes;
  for (const auto& [dtype, count] : checkpoint.dtypes()) {
    dtypes += fmt::format("{}{} {}", dtypes.empty() ? "" : ", ", count.tensors, dtype);
  }
  fmt::print("  {:<14} {:>5} tensors in {} file{} ({}), {} parameters, {:.3f} GB\n", name, checkpoint.names().size(),
             checkpoint.files().size(), checkpoint.files().size() == 1 ? "" : "s", dtypes, checkpoint.parameters(),
             static_cast<double>(checkpoint.bytes()) * 1e-9);
  const Findings findings = compare(checkpoint, expected);
  const wan::TensorTotals totals = wan::totals(expected);
  fmt::print("    the config asks for {} tensors, {} parameters: {} missing, {} of wrong shape, {} unexpected\n",
             totals.tensors, totals.parameters, findings.missing, findings.misshapen, findings.unexpected);
  return findings.missing == 0 && findings.misshapen == 0;
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  if (arguments.size() != 1) fail("inspect takes one checkpoint folder: zoetrope inspect MODEL_DIR");
  if (world != nullptr && world->rank() != 0) return 0;
  const fs::path folder = arguments[0];
  if (!fs::is_directory(folder)) fail("{}: is not a folder", folder.string());
  const wan::PipelineConfig pipeline = wan::PipelineConfig::load(folder / "model_index.json");
  fmt::print("{}: {}", folder.string(), pipeline.class_name);
  if (pipeline.boundary_ratio) fmt::print(", boundary_ratio {}", *pipeline.boundary_ratio);
  fmt::print("\n");
  bool whole = true;
  for (const auto& [name, component] : pipeline.components) {
    if (name == "transformer" || name == "transformer_2") {
      const auto config = wan::TransformerConfig::load(folder / name / "config.json");
      whole &= inspect_component(folder, name, "diffusion_pytorch_model", wan::transformer_tensors(config));
    } else if (name == "vae") {
      const auto config = wan::VaeConfig::load(folder / name / "config.json");
      whole &= inspect_component(folder, name, "diffusion_pytorch_model", wan::vae_tensors(config));
    } else if (name == "text_encoder") {
      const auto config = wan::TextEncoderConfig::load(folder / name / "config.json");
      whole &= inspect_component(folder, name, "model", wan::text_encoder_tensors(config));
    } else {
      const bool there = fs::is_directory(folder / name);
      fmt::print("  {:<14} {}{}\n", name, component.class_name, there ? "" : "  (the folder is missing)");
      whole &= there;
    }
  }
  if (!whole) fail("{}: the checkpoint is not complete; see the lines above", folder.string());
  return 0;
}

std::string help() {
  return "Prints components, tensor counts, dtypes, bytes and parameters of a checkpoint folder.\n";
}

}  // namespace

const Command kInspect = {"inspect", "MODEL_DIR", "Say what a checkpoint folder holds and what it lacks",
                          help,      nullptr,     run};

}  // namespace zoetrope::cli
