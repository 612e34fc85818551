#include "models/lora/names.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"

namespace zoetrope::lora {
namespace {

constexpr std::string_view kWeight = ".weight", kBiasEnd = ".bias";
constexpr std::string_view kModulation = "modulation";  // as the original code calls them all

// The name of an adapter that a trainer did not name: "to_q.lora_A.default.weight".
constexpr std::string_view kDefaultAdapter = ".default";

// Prefixes of a module's name. The last, none, is DiffSynth's.
constexpr std::string_view kPrefixes[] = {"transformer.",
                                          "base_model.model.",
                                          "diffusion_model.",
                                          "model.diffusion_model.",
                                          "pipe.dit.",
                                          "lora_unet_",
                                          "lora_unet__",
                                          "lycoris_",
                                          ""};

struct Ending {
  std::string_view text;
  LoraPart part;
};
constexpr std::string_view kModulationEnd = ".diff_m";
constexpr Ending kEndings[] = {
    {".lora_A.weight", LoraPart::kDown},
    {".lora_down.weight", LoraPart::kDown},
    {".lora.down.weight", LoraPart::kDown},
    {".lora_B.weight", LoraPart::kUp},
    {".lora_up.weight", LoraPart::kUp},
    {".lora.up.weight", LoraPart::kUp},
    {".lora_B.bias", LoraPart::kUpBias},
    {".lora_up.bias", LoraPart::kUpBias},
    {".alpha", LoraPart::kAlpha},
    {".diff", LoraPart::kWhole},
    {".diff_b", LoraPart::kBias},
    {".hada_w1_a", LoraPart::kHadamard1A},
    {".hada_w1_b", LoraPart::kHadamard1B},
    {".hada_w2_a", LoraPart::kHadamard2A},
    {".hada_w2_b", LoraPart::kHadamard2B},
    {".lokr_w1", LoraPart::kKronecker1},
    {".lokr_w1_a", LoraPart::kKronecker1A},
    {".lokr_w1_b", LoraPart::kKronecker1B},
    {".lokr_w2", LoraPart::kKronecker2},
    {".lokr_w2_a", LoraPart::kKronecker2A},
    {".lokr_w2_b", LoraPart::kKronecker2B},
    {".dora_scale", LoraPart::kDropped},
    {".lora_magnitude_vector", LoraPart::kDropped},
    {".lora_magnitude_vector.weight", LoraPart::kDropped},
};

struct Family {
  std::string_view end, name;
};
constexpr Family kUnsupported[] = {
    {".lora_mid.weight", "LoCon with lora_mid"},
    {".hada_t1", "LoHa with Tucker cores"},
    {".hada_t2", "LoHa with Tucker cores"},
    {".lokr_t2", "LoKr with a Tucker core"},
    {".oft_blocks", "OFT"},
    {".oft_diag", "OFT"},
};

bool cut_beginning(std::string_view& text, std::string_view beginning) {
  if (!text.starts_with(beginning)) return false;
  text.remove_prefix(beginning.size());
  return true;
}

bool cut_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

// A tensor's name without ".weight" or ".bias".
std::string module_name(std::string_view name) {
  if (!cut_end(name, kWeight)) cut_end(name, kBiasEnd);
  return std::string(name);
}

std::string without_default_adapter(const std::string& key) {
  const size_t at = key.find(std::string(kDefaultAdapter) + ".");
  return at == std::string::npos ? key : key.substr(0, at) + key.substr(at + kDefaultAdapter.size());
}

}  // namespace

LoraNames::LoraNames(const io::TensorTable& tensors) {
  for (const io::TensorSpec& spec : tensors) {
    const std::string module = module_name(spec.name),
                      original = spec.alias(io::NamingScheme::kOriginal).parts == 1
                                     ? module_name(spec.name_in(io::NamingScheme::kOriginal))
                                     : module;  // a change of several tensors in one has no name here
    for (const std::string& name : {module, original, with_underscores(module), with_underscores(original)}) {
      const auto [at, added] = modules_.try_emplace(name, module);
      ZT_CHECK(added || at->second == module, "'{}' names both {} and {}", name, at->second, module);
    }
    Parameters& parameters = parameters_[module];
    parameters.original = original;
    if (spec.role == io::TensorRole::kBias) parameters.bias = spec.name;
    else parameters.weight = spec.name;
    parameters.modulation |= spec.role == io::TensorRole::kModulation;
  }
}

std::optional<std::string> LoraNames::module_of(const std::string& name) const {
  for (const std::string_view prefix : kPrefixes) {
    std::string_view rest = name;
    if (!cut_beginning(rest, prefix)) continue;
    const auto found = modules_.find(std::string(rest));
    if (found != modules_.end()) return found->second;
  }
  return std::nullopt;
}

std::optional<LoraKey> LoraNames::find(const std::string& key) const {
  const std::string plain = without_default_adapter(key);
  std::string_view name = plain;
  if (cut_end(name, kModulationEnd)) {
    for (const char between : {'.', '_'}) {
      const auto module = module_of(std::string(name) + between + std::string(kModulation));
      if (module && parameters_.at(*module).modulation) return LoraKey{*module, LoraPart::kWhole};
    }
    return std::nullopt;
  }
  for (const Ending& ending : kEndings) {
    name = plain;
    if (!cut_end(name, ending.text)) continue;
    const std::optional<std::string> module = module_of(std::string(name));
    if (!module) return std::nullopt;
    const bool of_bias = ending.part == LoraPart::kBias || ending.part == LoraPart::kUpBias;
    if ((of_bias ? bias(*module) : weight(*module)).empty()) return std::nullopt;
    return LoraKey{*module, ending.part};
  }
  for (const Family& other : kUnsupported) {
    name = plain;
    if (!cut_end(name, other.end)) continue;
    const std::optional<std::string> module = module_of(std::string(name));
    if (module) return LoraKey{*module, LoraPart::kUnsupported};
  }
  return std::nullopt;
}

std::string LoraNames::family(const std::string& key) {
  const std::string plain = without_default_adapter(key);
  const auto* found = std::find_if(std::begin(kUnsupported), std::end(kUnsupported),
                                   [&](const Family& other) { return plain.ends_with(other.end); });
  ZT_CHECK(found != std::end(kUnsupported), "'{}'", key);
  return std::string(found->name);
}

const std::string& LoraNames::weight(const std::string& module) const { return parameters_.at(module).weight; }
const std::string& LoraNames::bias(const std::string& module) const { return parameters_.at(module).bias; }

}  // namespace zoetrope::lora
