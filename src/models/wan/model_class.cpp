#include "models/wan/model_class.h"

#include "base/error.h"

namespace zoetrope::wan {
namespace {

constexpr ModelInput kRefused{}, kOptional{.taken = true}, kRequired{.taken = true, .needed = true};

}  // namespace

ModelClass model_class(const PipelineConfig& pipeline, const TransformerConfig& transformer, const VaeConfig& vae,
                       const std::string& where) {
  ModelClass model;
  const char* expected = "WanPipeline";
  const int64_t z = vae.z_dim, with_channels = 2 * z + vae.scale_factor_temporal;
  if (transformer.vace()) {
    model = {"controlled video", Conditioning::kControl, kRefused, kRefused, kOptional, kRefused};
    expected = "WanVACEPipeline";
  } else if (transformer.animate()) {
    model = {"character animation", Conditioning::kAnimate, kRequired, kRefused, kRefused, kRequired};
    expected = "WanAnimatePipeline";
  } else if (transformer.in_channels == with_channels) {
    const bool ends = transformer.pos_embed_seq_len.has_value();
    // The 2.1 model would get too many rows of image embeddings with a last image.
    const ModelInput last = ends ? kRequired : transformer.image_dim ? kRefused : kOptional;
    model = {ends ? "first and last frame to video" : "image to video",
             Conditioning::kChannels,
             kRequired,
             last,
             kRefused,
             kRefused};
    expected = "WanImageToVideoPipeline";
  } else if (pipeline.expand_timesteps) {
    model = {"text and image to video", Conditioning::kFirstFrame, kOptional, kRefused, kRefused, kRefused};
    // Either name runs both ways.
    if (pipeline.class_name == "WanImageToVideoPipeline") expected = "WanImageToVideoPipeline";
  }
  const bool channels_of_picture =
      model.conditioning == Conditioning::kChannels || model.conditioning == Conditioning::kAnimate;
  const int64_t channels = channels_of_picture ? with_channels : z;
  if (transformer.in_channels != channels) {
    fail(
        "{}: the transformer's config says in_channels {}, but with the {} latent channels of the VAE (z_dim) a model "
        "takes {}, or {} with those of a picture and its mask",
        where, transformer.in_channels, z, z, with_channels);
  }
  if (pipeline.class_name != expected) {
    fail("{}: model_index.json names the class {}, but the transformer is one for {}, of class {}", where,
         pipeline.class_name, model.name, expected);
  }
  if (pipeline.expand_timesteps && model.conditioning != Conditioning::kFirstFrame) {
    fail("{}: model_index.json says expand_timesteps, which a model for {} does not have; it must be false", where,
         model.name);
  }
  return model;
}

}  // namespace zoetrope::wan
