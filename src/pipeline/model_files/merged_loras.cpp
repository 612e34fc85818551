#include "pipeline/model_files/merged_loras.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/words.h"
#include "models/lora/lora.h"
#include "pipeline/model_files/known_models.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kExpertKeys[] = {"lora_high", "lora_low"};
constexpr const char* kWarning = "Warning: ";  // begins a line
constexpr const char* kExpertNames[] = {"transformer", "transformer_2"};
constexpr const char* kNoise[] = {"high", "low"};

// The expert that the file's name says; none where it does not say.
std::optional<size_t> said_expert(const std::filesystem::path& file) {
  const Expertise expertise = expertise_of(file);
  if (expertise == Expertise::kUnknown) return std::nullopt;
  return expertise == Expertise::kHighNoise ? 0 : 1;
}

void require_for_expert(size_t expert, const std::vector<LoraFile>& loras) {
  for (const LoraFile& lora : loras) {
    const std::optional<size_t> said = said_expert(lora.file);
    if (!said || *said == expert) continue;
    fail("{}: {} is of {} noise by its name; name it in {}=, or rename it where its name means something else",
         kExpertKeys[expert], lora.file.string(), kNoise[*said], kExpertKeys[*said]);
  }
}

}  // namespace

void merge_loras(const GenerateOptions& options, ModelFolder& model) {
  const std::vector<LoraFile>* own[] = {&options.lora_high, &options.lora_low};
  for (size_t i = 0; i < std::size(own); ++i) {
    if (!own[i]->empty() && model.experts.size() != std::size(own)) {
      fail("{}: {} has one transformer and no two experts; name the file in lora=", kExpertKeys[i],
           model.folder.string());
    }
    require_for_expert(i, *own[i]);
  }
  for (size_t i = 0; i < model.experts.size(); ++i) {
    Expert& expert = model.experts[i];
    const auto merge = [&](const std::vector<LoraFile>& files) {
      for (const LoraFile& entry : files) {
        expert.loras.push_back(lora::open_lora(entry.file, entry.strength, expert.weights.tensors()));
        expert.weights.merge(expert.loras.back().deltas, options.check_finite);
      }
    };
    merge(options.lora);
    merge(*own[i]);
  }
  if (model.experts.size() == 1) return;
  for (size_t i = 0; i < options.lora.size(); ++i) {
    const std::optional<size_t> said = said_expert(options.lora[i].file);
    if (!said) continue;
    model.experts.front().loras[i].warnings.push_back(
        fmt::format("{}: is of {} noise by its name, but lora= merges it into both experts; {}= merges it into one",
                    options.lora[i].file.string(), kNoise[*said], kExpertKeys[*said]));
  }
}

std::vector<std::string> lora_lines(const ModelFolder& model) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < model.experts.size(); ++i) {
    for (const lora::Lora& lora : model.experts[i].loras) {
      const std::string ranks = lora.largest_rank == 0 ? "no product"
                                : lora.least_rank == lora.largest_rank
                                    ? fmt::format("rank {}", lora.largest_rank)
                                    : fmt::format("ranks {} to {}", lora.least_rank, lora.largest_rank);
      lines.push_back(fmt::format("LoRA {}: strength {}, {} tensors of {}, {}{}", lora.file.string(), lora.strength,
                                  lora.tensors, kExpertNames[i], ranks, lora.strength == 0 ? "; adds nothing" : ""));
      for (const std::string& warning : lora.warnings) lines.push_back(kWarning + warning);
    }
  }
  return lines;
}

std::vector<std::string> warnings_in(std::string_view note) {
  std::vector<std::string> warnings;
  for (const std::string_view line : split(note, '\n'))
    if (line.starts_with(kWarning)) warnings.emplace_back(line.substr(std::string_view(kWarning).size()));
  return warnings;
}

}  // namespace zoetrope::pipeline
