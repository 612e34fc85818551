#include "io/weights/merged_source.h"
#include "models/lora/lora.h"
#include "models/wan/tensor_tables.h"
#include "safetensors_changes.h"

namespace zoetrope::fuzz {
namespace {

// Small: what is fuzzed is what files say of it.
io::TensorTable transformer() {
  wan::TransformerConfig config;
  config.num_attention_heads = 1;
  config.attention_head_dim = 4;
  config.text_dim = 4;
  config.freq_dim = 4;
  config.ffn_dim = 8;
  config.num_layers = 1;
  config.in_channels = config.out_channels = 2;
  return wan::transformer_tensors(config);
}

void read(const std::string& bytes) {
  static const io::TensorTable tensors = transformer();
  const lora::Lora lora = lora::open_lora(write("input.safetensors", bytes), 0.5, tensors);
  for (const auto& [name, changes] : lora.deltas) {
    for (const io::WeightDelta& change : changes) {
      for (const io::DeltaMatrix* matrix : {&change.first, &change.second}) {
        for (const std::string* part : {&matrix->up, &matrix->down, &matrix->whole}) {
          if (!part->empty()) change.from->info(*part);
        }
      }
    }
  }
}

}  // namespace

const Target kTarget{read, changed_safetensors, kSafetensorsHeaderErrors};

}  // namespace zoetrope::fuzz
