#include "models/wan/lora/names.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"

namespace zoetrope::wan {
namespace {

constexpr std::string_view kWeight = ".weight", kBiasEnd = ".bias";
constexpr std::string_view kTable = "scale_shift_table", kOriginalTable = "modulation";

// Of an adapter that a trainer did not name: "to_q.lora_A.default.weight".
constexpr std::string_view kDefaultAdapter = ".default";

// What stands before a module's name. The last, nothing, is DiffSynth's.
constexpr std::string_view kPrefixes[] = {
    "transformer.", "base_model.model.", "diffusion_model.", "model.diffusion_model.", "lora_unet_", "lycoris_", ""};

struct Ending {
  std::string_view text;
  LoraPart part;
};
constexpr std::string_view kModulationEnd = ".diff_m";
constexpr Ending kEndings[] = {
    {".lora_A.weight", LoraPart::kDown},
    {".lora_down.weight", LoraPart::kDown},
    {".lora_B.weight", LoraPart::kUp},
    {".lora_up.weight", LoraPart::kUp},
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

// Original names of what stands at the same place in the tree, longest beginnings first. Rules of blocks hold for those
// of VACE too.
struct Renamed {
  std::string_view ours, original;
};
constexpr Renamed kTop[] = {
    {"condition_embedder.time_embedder.linear_1", "time_embedding.0"},
    {"condition_embedder.time_embedder.linear_2", "time_embedding.2"},
    {"condition_embedder.time_proj", "time_projection.1"},
    {"condition_embedder.text_embedder.linear_1", "text_embedding.0"},
    {"condition_embedder.text_embedder.linear_2", "text_embedding.2"},
    {"condition_embedder.image_embedder.norm1", "img_emb.proj.0"},
    {"condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"},
    {"condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"},
    {"condition_embedder.image_embedder.norm2", "img_emb.proj.4"},
    {"condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"},
    {"proj_out", "head.head"},
    {"scale_shift_table", "head.modulation"},
};
constexpr Renamed kInBlock[] = {
    {"scale_shift_table", "modulation"}, {"norm2", "norm3"},                                  // the one with parameters
    {"ffn.net.0.proj", "ffn.0"},         {"ffn.net.2", "ffn.2"}, {"proj_in", "before_proj"},  // of VACE
    {"proj_out", "after_proj"},
};
constexpr Renamed kAttentions[] = {{"attn1.", "self_attn."}, {"attn2.", "cross_attn."}};
constexpr Renamed kInAttention[] = {
    {"to_q", "q"},
    {"to_k", "k"},
    {"to_v", "v"},
    {"to_out.0", "o"},
    {"add_k_proj", "k_img"},
    {"add_v_proj", "v_img"},
    {"norm_added_k", "norm_k_img"},
};

template <size_t kSize>
std::string renamed(const Renamed (&rules)[kSize], std::string_view name) {
  const auto* rule = std::find_if(std::begin(rules), std::end(rules), [&](const Renamed& r) { return r.ours == name; });
  return std::string(rule == std::end(rules) ? name : rule->original);
}

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

std::string name_in_block(std::string_view rest) {
  for (const Renamed& attention : kAttentions) {
    if (cut_beginning(rest, attention.ours)) return std::string(attention.original) + renamed(kInAttention, rest);
  }
  return renamed(kInBlock, rest);
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

std::string without_default_adapter(const std::string& key) {
  const size_t at = key.find(std::string(kDefaultAdapter) + ".");
  return at == std::string::npos ? key : key.substr(0, at) + key.substr(at + kDefaultAdapter.size());
}

}  // namespace

std::string original_name(const std::string& module) {
  for (const std::string_view blocks : {"blocks.", "vace_blocks."}) {
    std::string_view rest = module;
    if (!cut_beginning(rest, blocks)) continue;
    const size_t dot = rest.find('.');
    if (dot == std::string_view::npos) return module;
    return std::string(blocks) + std::string(rest.substr(0, dot + 1)) + name_in_block(rest.substr(dot + 1));
  }
  return renamed(kTop, module);
}

LoraNames::LoraNames(const TensorList& tensors) {
  for (const TensorSpec& spec : tensors) {
    tensors_.insert(spec.name);
    std::string_view cut = spec.name;
    if (!cut_end(cut, kWeight)) cut_end(cut, kBiasEnd);
    const std::string module(cut), original = original_name(module);
    for (const std::string& name : {module, original, with_underscores(module), with_underscores(original)}) {
      const auto [at, added] = modules_.try_emplace(name, module);
      ZT_CHECK(added || at->second == module, "'{}' names both {} and {}", name, at->second, module);
    }
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
      const auto module = module_of(std::string(name) + between + std::string(kOriginalTable));
      if (module && module->ends_with(kTable)) return LoraKey{*module, LoraPart::kWhole};
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

std::string LoraNames::weight(const std::string& module) const {
  for (const std::string& name : {module + std::string(kWeight), module}) {
    if (tensors_.count(name) != 0) return name;
  }
  return {};
}

std::string LoraNames::bias(const std::string& module) const {
  const std::string name = module + std::string(kBiasEnd);
  return tensors_.count(name) != 0 ? name : std::string();
}

}  // namespace zoetrope::wan
