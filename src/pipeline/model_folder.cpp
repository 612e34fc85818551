#include "pipeline/model_folder.h"

#include <tuple>

#include "base/error.h"
#include "models/wan/tensor_list.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTiedEmbedding = "encoder.embed_tokens.weight";

// Every tensor of `expected` must be there with its shape. More tensors are no error: `inspect` names them.
void check_tensors(const io::Checkpoint& checkpoint, const wan::TensorList& expected) {
  for (const wan::TensorSpec& spec : expected) {
    const bool tied = spec.name == "shared.weight" && !checkpoint.contains(spec.name);
    const std::string name = tied && checkpoint.contains(kTiedEmbedding) ? kTiedEmbedding : spec.name;
    if (!checkpoint.contains(name)) {
      fail("{}: tensor '{}' {} is missing; the config of this folder asks for it", checkpoint.folder().string(), name,
           spec.shape.to_string());
    }
    const Shape& shape = checkpoint.info(name).shape;
    if (!(shape == spec.shape)) {
      fail("{}: tensor '{}' has shape {}, but the config of this folder asks for {}", checkpoint.file(name).string(),
           name, shape.to_string(), spec.shape.to_string());
    }
  }
}

Expert open_expert(const fs::path& folder) {
  const auto config = wan::TransformerConfig::load(folder / "config.json");
  wan::require_supported(config, folder.string());
  Expert expert{config, io::Checkpoint::open(folder, "diffusion_pytorch_model")};
  check_tensors(expert.checkpoint, wan::transformer_tensors(config));
  return expert;
}

void require_same(const char* what, int64_t a, const char* where_a, int64_t b, const char* where_b,
                  const fs::path& folder) {
  if (a != b) fail("{}: {} is {} in {} but {} in {}", folder.string(), what, a, where_a, b, where_b);
}

}  // namespace

ModelFolder ModelFolder::open(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    fail("model: {} is not a folder; name a checkpoint folder in the diffusers layout", folder.string());
  }
  const auto pipeline = wan::PipelineConfig::load(folder / "model_index.json");
  wan::require_supported(pipeline, (folder / "model_index.json").string());
  const auto scheduler = wan::SchedulerConfigFile::load(folder / "scheduler" / "scheduler_config.json");
  std::vector<Expert> experts;
  experts.push_back(open_expert(folder / "transformer"));
  if (pipeline.has("transformer_2")) experts.push_back(open_expert(folder / "transformer_2"));
  if (experts.size() == 2 && !pipeline.boundary_ratio) {
    fail("{}: has a transformer_2 but no boundary_ratio; add it (0.875 for Wan 2.2 A14B)",
         (folder / "model_index.json").string());
  }
  const auto text_config = wan::TextEncoderConfig::load(folder / "text_encoder" / "config.json");
  const auto vae_config = wan::VaeConfig::load(folder / "vae" / "config.json");
  wan::require_supported(vae_config, (folder / "vae").string());
  ModelFolder model{folder,
                    pipeline,
                    scheduler,
                    wan::Tokenizer::load(folder / "tokenizer"),
                    text_config,
                    io::Checkpoint::open(folder / "text_encoder", "model"),
                    std::move(experts),
                    vae_config,
                    io::Checkpoint::open(folder / "vae", "diffusion_pytorch_model")};
  check_tensors(model.text_encoder, wan::text_encoder_tensors(text_config));
  check_tensors(model.vae, wan::vae_tensors(vae_config));
  for (const Expert& expert : model.experts) {
    const wan::TransformerConfig& config = expert.config;
    require_same("the text width", config.text_dim, "transformer/config.json (text_dim)", text_config.d_model,
                 "text_encoder/config.json (d_model)", folder);
    require_same("the number of latent channels", config.in_channels, "transformer/config.json (in_channels)",
                 vae_config.z_dim, "vae/config.json (z_dim)", folder);
    require_same("the number of latent channels", config.out_channels, "transformer/config.json (out_channels)",
                 vae_config.z_dim, "vae/config.json (z_dim)", folder);
  }
  if (model.experts.size() == 2) {
    const auto& [first, second] = std::tie(model.experts[0].config, model.experts[1].config);
    require_same("the number of heads", first.num_attention_heads, "transformer/config.json",
                 second.num_attention_heads, "transformer_2/config.json", folder);
    require_same("the head size", first.attention_head_dim, "transformer/config.json", second.attention_head_dim,
                 "transformer_2/config.json", folder);
  }
  return model;
}

}  // namespace zoetrope::pipeline
