// What a file written by PEFT or diffusers says of its strengths, rank and alpha of all modules and patterns of names
// with others: in its metadata under the key `lora_adapter_metadata`, with "transformer." before every name
// (diffusers' save_lora_weights) or without (save_lora_adapter), or in adapter_config.json beside PEFT's
// adapter_model.safetensors. Files without either mean alpha = rank.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zoetrope::lora {

inline constexpr char kFileOfPeft[] = "adapter_model.safetensors";

class PeftMetadata {
 public:
  // Of this safetensors file, with its metadata. Throws Error, as scale() does, with the file's name.
  PeftMetadata(const std::filesystem::path& file, const std::map<std::string, std::string>& metadata);

  // adapter_config.json, where it was read; empty otherwise.
  const std::filesystem::path& config_file() const { return config_file_; }

  // A module's name in the checkpoint, "blocks.0.attn1.to_q", and in the original code, "blocks.0.self_attn.q": a file
  // means either.
  using Names = std::array<std::string, 2>;

  // What the product of `module`, of this rank, is multiplied by: alpha / rank, or
  // alpha / √rank where the file says `use_rslora`. Throws Error where the file says another rank, or
  // speaks of other components only.
  double scale(const Names& module, int64_t rank) const;

  // Of a change that has no rank of its own, as LoKr's of two whole factors: alpha / rank where both are said.
  std::optional<double> stated_scale(const Names& module) const;

 private:
  // By regular expressions of names' ends, in the order of the file: the first that fits holds.
  using Pattern = std::vector<std::pair<std::string, double>>;
  std::optional<double> stated(const Pattern& pattern, const char* key, std::optional<double> of_all,
                               const Names& module) const;
  std::optional<double> rank_of(const Names& module) const;
  std::optional<double> alpha_of(const Names& module) const;

  void read(const std::string& text);

  std::filesystem::path config_file_;
  std::string where_;
  std::string other_component_;  // a key of one, where there is none of this
  std::optional<double> rank_, alpha_;
  bool root_ = false;  // √rank
  Pattern ranks_, alphas_;
};

}  // namespace zoetrope::lora
