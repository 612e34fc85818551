#include "pipeline/model_files/weight_cache_name.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/hash.h"

namespace zoetrope::pipeline {
namespace {

// Readable, and another name for every choice of weight and LoRA files, whatever their strengths: trying strengths does
// not fill the disk.
std::string cache_name(const std::filesystem::path& folder, const char* component, const Expert& expert) {
  const std::filesystem::path whole = std::filesystem::weakly_canonical(folder);
  uint64_t hash = fnv1a64(whole.string());
  if (const io::Checkpoint* checkpoint = expert.weights.checkpoint()) {
    for (const auto& file : checkpoint->files())
      hash = fnv1a64(fmt::format(":{}", std::filesystem::weakly_canonical(file->path()).string()), hash);
  }
  for (const lora::Lora& lora : expert.loras) {
    hash = fnv1a64(fmt::format(":{}", std::filesystem::weakly_canonical(lora.file).string()), hash);
  }
  return fmt::format("{}-{}-{}{:08x}", whole.filename().string(), component, expert.loras.empty() ? "" : "lora-",
                     hash & 0xFFFFFFFFu);
}

}  // namespace

std::string weight_cache_name(const ModelFolder& model, int expert, int part, int parts) {
  const std::string whole = cache_name(model.folder, expert_name(expert), model.experts[static_cast<size_t>(expert)]);
  return parts == 1 ? whole : fmt::format("{}-part{}of{}", whole, part + 1, parts);
}

}  // namespace zoetrope::pipeline
