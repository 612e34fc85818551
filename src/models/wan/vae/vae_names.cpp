#include "models/wan/vae/vae_names.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace zoetrope::wan {
namespace {

// A name that is read level by level.
class Levels {
 public:
  explicit Levels(std::string_view name) : rest_(name) {}
  // Steps over these levels if the rest begins with them.
  bool take(std::string_view levels) {
    const bool whole = rest_.size() == levels.size();
    if (!rest_.starts_with(levels) || (!whole && rest_[levels.size()] != '.')) return false;
    rest_.remove_prefix(levels.size() + (whole ? 0 : 1));
    return true;
  }
  int64_t take_number() {
    const std::string_view digits = rest_.substr(0, rest_.find('.'));
    const int64_t number = std::strtoll(std::string(digits).c_str(), nullptr, 10);
    take(digits);
    return number;
  }
  std::string rest() const { return std::string(rest_); }

 private:
  std::string_view rest_;
};

constexpr std::pair<std::string_view, const char*> kResidual[] = {{"norm1.gamma", "residual.0.gamma"},
                                                                  {"conv1", "residual.2"},
                                                                  {"norm2.gamma", "residual.3.gamma"},
                                                                  {"conv2", "residual.6"},
                                                                  {"conv_shortcut", "shortcut"}};
constexpr std::pair<std::string_view, const char*> kEnds[] = {
    {"conv_in", "conv1"}, {"norm_out.gamma", "head.0.gamma"}, {"conv_out", "head.2"}};

// The rest of a name below `name` elsewhere.
std::string below(const std::string& name, const Levels& levels) {
  const std::string rest = levels.rest();
  return rest.empty() ? name : name + "." + rest;
}

// Of a part of a residual block; other parts keep their names.
std::string residual_part(Levels levels) {
  for (const auto& [hub, original] : kResidual)
    if (levels.take(hub)) return below(original, levels);
  return levels.rest();
}

// Below encoder. or decoder.
std::string coder_part(const VaeConfig& config, Levels levels) {
  for (const auto& [hub, original] : kEnds)
    if (levels.take(hub)) return below(original, levels);
  if (levels.take("mid_block.attentions.0")) return below("middle.1", levels);
  if (levels.take("mid_block.resnets")) {
    const int64_t block = levels.take_number();
    return fmt::format("middle.{}.{}", 2 * block, residual_part(levels));
  }

  const bool down = levels.take("down_blocks");
  if (!down && !levels.take("up_blocks")) return levels.rest();
  const char* list = down ? "downsamples" : "upsamples";
  const int64_t stage = levels.take_number();
  if (down && !config.is_residual) return fmt::format("{}.{}.{}", list, stage, residual_part(levels));
  // A stage of the decoder has one block more; what changes the size comes last.
  const int64_t blocks = config.num_res_blocks + (down ? 0 : 1);
  const int64_t part = levels.take("resnets") ? levels.take_number() : blocks;
  if (part == blocks && !levels.take("upsamplers.0") && !levels.take("upsampler")) levels.take("downsampler");
  if (config.is_residual) return fmt::format("{}.{}.{}.{}.{}", list, stage, list, part, residual_part(levels));
  return fmt::format("{}.{}.{}", list, (blocks + 1) * stage + part, residual_part(levels));
}

}  // namespace

std::string original_vae_name(const VaeConfig& config, const std::string& name) {
  Levels levels(name);
  if (levels.take("quant_conv")) return below("conv1", levels);
  if (levels.take("post_quant_conv")) return below("conv2", levels);
  for (const char* coder : {"encoder", "decoder"})
    if (levels.take(coder)) return fmt::format("{}.{}", coder, coder_part(config, levels));
  return name;
}

}  // namespace zoetrope::wan
