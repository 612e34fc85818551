#include "pipeline/model_files/fingerprint.h"

#include <fmt/format.h>

#include "base/hash.h"
#include "base/input_file.h"
#include "base/words.h"
#include "models/lora/lora.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

class Lines {
 public:
  explicit Lines(const fs::path& folder) : folder_(folder) {}

  // Nothing where there is no such file: that one machine lacks it shows in the lines of the others.
  void whole(const fs::path& file) {
    if (fs::is_regular_file(file)) whole(file, label(file));
  }
  void whole(const fs::path& file, const std::string& name) { add(name, fnv1a64(read_file(file))); }

  void weights(const io::TensorFile& file) { weights(file, label(file.path())); }
  void weights(const io::TensorFile& file, const std::string& name) {
    add(name, file.hash(io::TensorFile::Sample::kBlocks));
  }

  const std::string& text() const { return text_; }

 private:
  // Files elsewhere, named by key, have their name alone: each host may keep them in a folder of its own.
  std::string label(const fs::path& file) const {
    const fs::path inside = fs::absolute(file).lexically_relative(fs::absolute(folder_));
    if (inside.empty() || *inside.begin() == "..") return file.filename().string();
    return fmt::format("model/{}", inside.generic_string());
  }
  void add(const std::string& name, uint64_t hash) { text_ += fmt::format("{}={:016x}\n", name, hash); }

  const fs::path& folder_;
  std::string text_;
};

void add_component(Lines& lines, const ModelFolder& model, const ComponentWeights& weights, const char* name) {
  const fs::path& config = model.config_files.at(name);
  if (config == model.folder / name / config.filename()) lines.whole(config);
  else lines.whole(config, fmt::format("{} {}", name, config.filename().string()));
  const io::Checkpoint* checkpoint = weights.checkpoint();
  if (checkpoint == nullptr) return;  // random: equal where the configs are
  lines.whole(checkpoint->index());
  for (const auto& file : checkpoint->files()) lines.weights(*file);
}

void add_expert(Lines& lines, const ModelFolder& model, size_t i) {
  const Expert& expert = model.experts[i];
  const char* name = expert_name(static_cast<int>(i));
  add_component(lines, model, expert.weights, name);
  for (const lora::Lora& lora : expert.loras) {
    lines.weights(*io::TensorFile::open(lora.file), fmt::format("{} lora {}", name, lora.file.filename().string()));
    lines.whole(lora.config_file);
  }
}

}  // namespace

std::string fingerprint(const ModelFolder& model) {
  Lines lines(model.folder);
  lines.whole(model.folder / "model_index.json");
  lines.whole(model.folder / "scheduler" / "scheduler_config.json");
  lines.whole(model.tokenizer_folder);  // may be a file
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "spiece.model"}) {
    lines.whole(model.tokenizer_folder / name);
  }
  add_component(lines, model, model.text_encoder, "text_encoder");
  for (size_t i = 0; i < model.experts.size(); ++i) add_expert(lines, model, i);
  add_component(lines, model, model.vae, "vae");
  if (model.image_encoder) {
    add_component(lines, model, model.image_encoder->weights, "image_encoder");
    lines.whole(model.folder / "image_processor" / "preprocessor_config.json");
  }
  return lines.text();
}

std::string noise_fingerprint(const GenerateOptions& options) {
  if (options.latents.empty()) return {};
  const uint64_t hash = io::TensorFile::open(options.latents)->hash(io::TensorFile::Sample::kBlocks);
  return fmt::format("{}{}={:016x}\n", kNoiseLine, fs::path(options.latents).filename().string(), hash);
}

std::string transformer_identity(const ModelFolder& model, size_t expert) {
  const Expert& of = model.experts.at(expert);
  Lines lines(model.folder);
  add_expert(lines, model, expert);
  uint64_t hash = fnv1a64(fmt::to_string(of.config.block_count()));
  // Experts may have the same weights and still work at other timesteps.
  const std::string name = expert_name(static_cast<int>(expert));
  if (const auto seed = of.weights.random_seed()) hash = fnv1a64(fmt::format("{} {}", name, *seed), hash);
  else if (model.experts.size() > 1) hash = fnv1a64(name, hash);
  for (const std::string_view line : split_terminated(lines.text(), '\n'))
    hash = fnv1a64(line.substr(line.rfind('=')), hash);
  for (const lora::Lora& lora : of.loras) hash = fnv1a64(fmt::format("{}", lora.strength), hash);
  return fmt::format("{:016x}", hash);
}

}  // namespace zoetrope::pipeline
