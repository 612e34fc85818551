#include "pipeline/lora_options.h"

#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "models/lora/lora.h"

namespace zoetrope::pipeline {
namespace {

constexpr double kLargestStrength = 1000;
constexpr const char* kExample = "lora=a.safetensors:0.8,b.safetensors:1";

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == std::string_view::npos ? std::string_view()
                                         : text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

LoraEntry parse_entry(const std::string& key, std::string_view entry) {
  if (entry.empty()) fail("{}: an entry between commas is empty; write it as {}", key, kExample);
  const size_t colon = entry.rfind(':');
  if (colon == std::string_view::npos) return {std::string(entry), 1};
  const std::string_view file = trimmed(entry.substr(0, colon)), strength = trimmed(entry.substr(colon + 1));
  if (file.empty()) fail("{}: entry '{}' names no file; write it as {}", key, entry, kExample);
  LoraEntry parsed{std::string(file), 0};
  const char* end = strength.data() + strength.size();
  const auto [stop, code] = std::from_chars(strength.data(), end, parsed.strength);
  if (strength.empty() || code != std::errc() || stop != end || !std::isfinite(parsed.strength)) {
    fail(
        "{}: the strength '{}' of entry '{}' is not a number; write it as {} (a path that holds a colon needs its "
        "strength behind it)",
        key, strength, entry, kExample);
  }
  if (std::abs(parsed.strength) > kLargestStrength) {
    fail("{}: the strength {} of entry '{}' is not between -{} and {}", key, strength, entry, kLargestStrength,
         kLargestStrength);
  }
  return parsed;
}

constexpr const char* kExpertKeys[] = {"lora_high", "lora_low"};
constexpr const char* kExpertNames[] = {"transformer", "transformer_2"};

}  // namespace

std::vector<LoraEntry> parse_loras(const std::string& key, const std::string& text) {
  std::vector<LoraEntry> entries;
  if (trimmed(text).empty()) return entries;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    entries.push_back(parse_entry(key, trimmed(std::string_view(text).substr(begin, end - begin))));
    begin = end + 1;
  }
  return entries;
}

void merge_loras(const GenerateOptions& options, ModelFolder& model) {
  const std::string* own[] = {&options.lora_high, &options.lora_low};
  for (size_t i = 0; i < std::size(own); ++i) {
    if (!own[i]->empty() && model.experts.size() != std::size(own)) {
      fail("{}: {} has one transformer and no two experts; name the file in lora=", kExpertKeys[i],
           model.folder.string());
    }
  }
  for (size_t i = 0; i < model.experts.size(); ++i) {
    Expert& expert = model.experts[i];
    const auto merge = [&](const char* key, const std::string& text) {
      for (const LoraEntry& entry : parse_loras(key, text)) {
        expert.loras.push_back(lora::open_lora(entry.file, entry.strength, expert.weights.tensors()));
        expert.weights.merge(expert.loras.back().deltas, options.check_finite);
      }
    };
    merge("lora", options.lora);
    merge(kExpertKeys[i], *own[i]);
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
      for (const std::string& warning : lora.warnings) lines.push_back("Warning: " + warning);
    }
  }
  return lines;
}

}  // namespace zoetrope::pipeline
