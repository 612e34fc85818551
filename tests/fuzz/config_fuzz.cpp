// The configs of a model folder: every input is read as each of them.
#include "zoetrope/error.h"

#include "base/json.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/config.h"
#include "models/wan/tensor_tables.h"
#include "text_changes.h"

namespace zoetrope::fuzz {
namespace {

constexpr int64_t kMostLayers = 100;  // lists of more names only take time

template <typename Read>
void attempt(Read&& read) {
  try {
    read();
  } catch (const Error&) {
  }
}

void read(const std::string& bytes) {
  const JsonObject json = JsonObject::load(write("config.json", bytes));
  attempt([&] {
    const auto config = wan::TransformerConfig::from_json(json);
    wan::require_supported(config, "input");
    if (config.block_count() <= kMostLayers) io::totals(wan::transformer_tensors(config));
  });
  attempt([&] {
    const auto config = encoders::TextEncoderConfig::from_json(json);
    if (config.num_layers <= kMostLayers) io::totals(encoders::text_encoder_tensors(config));
  });
  attempt([&] {
    const auto config = wan::VaeConfig::from_json(json);
    if (config.num_res_blocks <= kMostLayers) io::totals(wan::vae_tensors(config));
  });
  attempt([&] {
    const auto config = encoders::ClipVisionConfig::from_json(json);
    config.tokens();
    if (config.num_hidden_layers <= kMostLayers) io::totals(encoders::clip_vision_tensors(config));
  });
  attempt([&] { encoders::ImageProcessorConfig::from_json(json); });
  attempt([&] { wan::SchedulerConfigFile::from_json(json); });
  attempt([&] { wan::PipelineConfig::from_json(json); });
}

std::string change(const std::string& bytes, Dice& dice) { return changed_json(bytes, "{}", dice); }

}  // namespace

const Target kTarget{read, change, {"not valid JSON", "but a JSON object {"}};

}  // namespace zoetrope::fuzz
