#include "pipeline/settings/lora_options.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/words.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {
namespace {

constexpr double kLargestStrength = 1000;
constexpr const char* kExample = "lora=a.safetensors:0.8,b.safetensors:1";

LoraFile parse_entry(std::string_view entry) {
  if (entry.empty()) fail("an entry between commas is empty; write it as {}", kExample);
  const size_t colon = entry.rfind(':');
  if (colon == std::string_view::npos) return {std::string(entry), 1};
  const std::string_view file = trimmed(entry.substr(0, colon)), strength = trimmed(entry.substr(colon + 1));
  if (file.empty()) fail("entry '{}' names no file; write it as {}", entry, kExample);
  const std::optional<double> number = to_number<double>(strength);
  if (!number || !std::isfinite(*number)) {
    fail(
        "the strength '{}' of entry '{}' is not a number; write it as {} (a path that holds a colon needs its strength "
        "behind it)",
        strength, entry, kExample);
  }
  return {std::string(file), *number};
}

}  // namespace

std::vector<LoraFile> parse_loras(std::string_view text) {
  std::vector<LoraFile> entries;
  if (trimmed(text).empty()) return entries;
  for (const std::string_view entry : split(text, ',')) entries.push_back(parse_entry(trimmed(entry)));
  return entries;
}

std::string loras_text(const std::vector<LoraFile>& loras) {
  std::string text;
  for (const LoraFile& lora : loras)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", lora.file.string(), lora.strength);
  return text;
}

void check_loras(const char* key, const std::vector<LoraFile>& loras) {
  for (const LoraFile& lora : loras) {
    if (lora.file.empty()) fail("{}: an entry names no file", key);
    if (std::abs(lora.strength) <= kLargestStrength) continue;
    fail("{}: the strength {} of '{}' is not between -{} and {}", key, lora.strength, lora.file.string(),
         kLargestStrength, kLargestStrength);
  }
}

}  // namespace zoetrope::pipeline
