// What the keys of a LoRA file name in a transformer: the spellings of PEFT/diffusers, of the original code and
// ComfyUI, of kohya's scripts and of LyCORIS, one mapping for all (wan.md sections 2.7 and 10.6). Names only; values
// are lora.h.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "io/weights/tensor_table.h"

namespace zoetrope::lora {

// What a key holds of a module's change.
enum class LoraPart {
  kDown,    // [rank, in]: lora_A, lora_down
  kUp,      // [out, rank]: lora_B, lora_up
  kUpBias,  // [out]: a bias of lora_B, of the same strength as the product
  kAlpha,   // a number; the product is multiplied by alpha / rank
  kWhole,   // the tensor's whole change: .diff, of modulations .diff_m
  kBias,    // the bias' whole change: .diff_b
  // LoHa: (1A · 1B) ⊙ (2A · 2B), of [out, rank] and [rank, in].
  kHadamard1A,
  kHadamard1B,
  kHadamard2A,
  kHadamard2B,
  // LoKr: 1 ⊗ 2, each a matrix or the product of two.
  kKronecker1,
  kKronecker1A,
  kKronecker1B,
  kKronecker2,
  kKronecker2A,
  kKronecker2B,
  kDropped,      // known and not used: magnitudes of DoRA
  kUnsupported,  // of families whose changes are others
};
inline constexpr size_t kLoraParts = static_cast<size_t>(LoraPart::kDropped);  // that are used

struct LoraKey {
  std::string module;  // as the checkpoint names it, without ".weight": "blocks.0.attn1.to_q"
  LoraPart part;
};

class LoraNames {
 public:
  explicit LoraNames(const io::TensorTable& tensors);

  // Nothing where the key names no tensor of the table, or no part that is known.
  std::optional<LoraKey> find(const std::string& key) const;

  // The family of a key that is unsupported, for people: "LoCon with lora_mid".
  static std::string family(const std::string& key);

  // The table's names for a module's parameters; empty where it has none.
  const std::string& weight(const std::string& module) const;  // of tables that are no layer's the module's own name
  const std::string& bias(const std::string& module) const;
  // The module's name in the original code: "blocks.0.self_attn.q".
  const std::string& original(const std::string& module) const { return parameters_.at(module).original; }

 private:
  std::optional<std::string> module_of(const std::string& name) const;

  struct Parameters {
    std::string weight, bias, original;
    bool modulation = false;
  };
  std::map<std::string, Parameters> parameters_;  // by module
  std::map<std::string, std::string> modules_;    // by every spelling
};

}  // namespace zoetrope::lora
