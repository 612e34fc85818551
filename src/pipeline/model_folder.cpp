#include "pipeline/model_folder.h"

#include "base/error.h"
#include "models/wan/tensor_list.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

// Every tensor of `expected` must be there with its shape. More tensors are no error: `inspect` names them.
void check_tensors(const io::Checkpoint& checkpoint, const wan::TensorList& expected) {
  for (const wan::TensorSpec& spec : expected) {
    const std::string name = wan::stored_name(checkpoint, spec.name);
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
  Expert expert{config, io::Checkpoint::open(folder, kDiffusersStem)};
  check_tensors(expert.checkpoint, wan::transformer_tensors(config));
  return expert;
}

void require_same(const char* what, int64_t a, const char* where_a, int64_t b, const char* where_b,
                  const fs::path& folder) {
  if (a != b) fail("{}: {} is {} in {} but {} in {}", folder.string(), what, a, where_a, b, where_b);
}

// The experts take turns on the same latents, tokens and attention plan: what shapes those must not differ. Depth and
// feed-forward width may.
void require_interchangeable(const ModelFolder& model) {
  const wan::TransformerConfig &first = model.experts[0].config, &second = model.experts[1].config;
  const auto same = [&](const char* what, int64_t a, int64_t b) {
    require_same(what, a, "transformer/config.json", b, "transformer_2/config.json", model.folder);
  };
  same("the number of heads", first.num_attention_heads, second.num_attention_heads);
  same("the head size", first.attention_head_dim, second.attention_head_dim);
  same("patch_size[0]", first.patch_size[0], second.patch_size[0]);
  same("patch_size[1]", first.patch_size[1], second.patch_size[1]);
  same("patch_size[2]", first.patch_size[2], second.patch_size[2]);
  same("rope_max_seq_len", first.rope_max_seq_len, second.rope_max_seq_len);
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
  const auto text_config = wan::TextEncoderConfig::load(folder / "text_encoder" / "config.json");
  const auto vae_config = wan::VaeConfig::load(folder / "vae" / "config.json");
  wan::require_supported(vae_config, (folder / "vae").string());
  ModelFolder model{folder,
                    pipeline,
                    scheduler,
                    wan::Tokenizer::load(folder / "tokenizer"),
                    text_config,
                    io::Checkpoint::open(folder / "text_encoder", kTextEncoderStem),
                    std::move(experts),
                    vae_config,
                    io::Checkpoint::open(folder / "vae", kDiffusersStem)};
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
  if (model.experts.size() == 2) require_interchangeable(model);
  return model;
}

}  // namespace zoetrope::pipeline
