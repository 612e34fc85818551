#include "pipeline/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "base/input_file.h"
#include "models/lora/lora.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

class Lines {
 public:
  explicit Lines(const fs::path& folder) : folder_(folder) {}

  // Nothing where there is no such file: that one machine lacks it shows in the lines of the others.
  void whole(const fs::path& file) {
    if (!fs::is_regular_file(file)) return;
    add(label(file), fnv1a64(read_file(file)));
  }

  void weights(const fs::path& file) { weights(file, label(file)); }
  void weights(const fs::path& path, const std::string& name) {
    const InputFile file(path);
    const uint64_t size = file.bytes();
    uint64_t header = 0;  // a safetensors file begins with the length of its header
    const std::string length = read(file, 0, sizeof(header));
    std::memcpy(&header, length.data(), sizeof(header));
    constexpr uint64_t kSample = 4096;
    const uint64_t begin = std::min(size, sizeof(header) + header + kSample);
    const uint64_t hash = fnv1a64(read(file, 0, begin), fnv1a64(std::to_string(size)));
    const uint64_t end = std::min(size, kSample);
    add(name, fnv1a64(read(file, size - end, end), hash));
  }

  const std::string& text() const { return text_; }

 private:
  static std::string read(const InputFile& file, uint64_t offset, uint64_t count) {
    std::string bytes(count, '\0');
    file.read(offset, bytes.data(), count);
    return bytes;
  }

  std::string label(const fs::path& file) const {
    return fmt::format("model/{}", file.lexically_relative(folder_).generic_string());
  }
  void add(const std::string& name, uint64_t hash) { text_ += fmt::format("{}={:016x}\n", name, hash); }

  const fs::path& folder_;
  std::string text_;
};

}  // namespace

std::string fingerprint(const ModelFolder& model) {
  Lines lines(model.folder);
  lines.whole(model.folder / "model_index.json");
  lines.whole(model.folder / "scheduler" / "scheduler_config.json");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "spiece.model"}) {
    lines.whole(model.tokenizer_folder / name);
  }
  const auto component = [&](const ComponentWeights& weights, const char* name, const char* stem) {
    const fs::path folder = model.folder / name;
    lines.whole(folder / "config.json");
    const io::Checkpoint* checkpoint = weights.checkpoint();
    if (checkpoint == nullptr) return;  // random: equal where the configs are
    lines.whole(folder / fmt::format("{}.safetensors.index.json", stem));
    std::vector<fs::path> files = checkpoint->files();
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) lines.weights(file);
  };
  component(model.text_encoder, "text_encoder", kTextEncoderStem);
  const char* experts[] = {"transformer", "transformer_2"};
  for (size_t i = 0; i < model.experts.size(); ++i) {
    component(model.experts[i].weights, experts[i], kDiffusersStem);
    for (const lora::Lora& lora : model.experts[i].loras) {
      lines.weights(lora.file, fmt::format("{} lora {}", experts[i], lora.file.string()));
    }
  }
  component(model.vae, "vae", kDiffusersStem);
  if (model.image_encoder) {
    component(model.image_encoder->weights, "image_encoder", kTextEncoderStem);
    lines.whole(model.folder / "image_processor" / "preprocessor_config.json");
  }
  return lines.text();
}

}  // namespace zoetrope::pipeline
