// What a file written by PEFT or diffusers says of its strengths, in the metadata key `lora_adapter_metadata`: rank and
// alpha of all modules, and patterns of names with others. Files without it mean alpha = rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zoetrope::lora {

class PeftMetadata {
 public:
  // `metadata` is that of the safetensors file; `where` opens every error.
  PeftMetadata(const std::map<std::string, std::string>& metadata, const std::string& where);

  // What the product of `module` ("blocks.0.attn1.to_q"), of this rank, is multiplied by: alpha / rank, or
  // alpha / √rank where the file says `use_rslora`. Throws Error where the file says another rank.
  double scale(const std::string& module, int64_t rank) const;

 private:
  // By regular expressions of names' ends, in the order of the file: the first that fits holds.
  using Pattern = std::vector<std::pair<std::string, double>>;
  std::optional<double> match(const Pattern& pattern, const char* key, const std::string& module) const;

  std::string where_;
  std::optional<double> rank_, alpha_;
  bool root_ = false;  // √rank
  Pattern ranks_, alphas_;
};

}  // namespace zoetrope::lora
