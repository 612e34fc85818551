#include "models/lora/names.h"

#include <gtest/gtest.h>

#include <string>

#include "models/wan/tensor_tables.h"

namespace zoetrope::lora {
namespace {

// Image to video with a position table and VACE blocks: every kind of name there is.
wan::TransformerConfig everything() {
  wan::TransformerConfig config;
  config.num_layers = 3;
  config.image_dim = 1280;
  config.added_kv_proj_dim = config.inner_dim();
  config.pos_embed_seq_len = 514;
  config.vace_layers = {0, 2};
  return config;
}

class LoraNamesTest : public testing::Test {
 protected:
  void expect(const std::string& key, const std::string& module, LoraPart part) const {
    const auto found = names_.find(key);
    ASSERT_TRUE(found) << key;
    EXPECT_EQ(found->module, module) << key;
    EXPECT_EQ(found->part, part) << key;
  }
  void expect_none(const std::string& key) const { EXPECT_FALSE(names_.find(key)) << key; }

  LoraNames names_{wan::transformer_tensors(everything())};
};

TEST_F(LoraNamesTest, PeftAndDiffusers) {
  expect("transformer.blocks.0.attn1.to_q.lora_A.weight", "blocks.0.attn1.to_q", LoraPart::kDown);
  expect("transformer.blocks.2.attn2.to_out.0.lora_B.weight", "blocks.2.attn2.to_out.0", LoraPart::kUp);
  expect("transformer.blocks.1.ffn.net.0.proj.lora_B.bias", "blocks.1.ffn.net.0.proj", LoraPart::kUpBias);
  expect("transformer.vace_blocks.1.attn2.to_k.lora_A.weight", "vace_blocks.1.attn2.to_k", LoraPart::kDown);
  expect("transformer.condition_embedder.time_proj.lora_A.weight", "condition_embedder.time_proj", LoraPart::kDown);
  expect("transformer.blocks.0.attn1.to_q.lora_magnitude_vector", "blocks.0.attn1.to_q", LoraPart::kDropped);
}

TEST_F(LoraNamesTest, OriginalAndComfyUi) {
  const std::string p = "diffusion_model.";
  expect(p + "blocks.0.self_attn.q.lora_down.weight", "blocks.0.attn1.to_q", LoraPart::kDown);
  expect(p + "blocks.0.self_attn.o.lora_up.weight", "blocks.0.attn1.to_out.0", LoraPart::kUp);
  expect(p + "blocks.0.cross_attn.v.alpha", "blocks.0.attn2.to_v", LoraPart::kAlpha);
  expect(p + "blocks.0.cross_attn.k_img.lora_A.weight", "blocks.0.attn2.add_k_proj", LoraPart::kDown);
  expect(p + "blocks.0.cross_attn.v_img.diff_b", "blocks.0.attn2.add_v_proj", LoraPart::kBias);
  expect(p + "blocks.0.cross_attn.norm_k_img.diff", "blocks.0.attn2.norm_added_k", LoraPart::kWhole);
  expect(p + "blocks.0.self_attn.norm_q.diff", "blocks.0.attn1.norm_q", LoraPart::kWhole);
  expect(p + "blocks.1.ffn.0.diff_b", "blocks.1.ffn.net.0.proj", LoraPart::kBias);
  expect(p + "blocks.1.ffn.2.lora_A.weight", "blocks.1.ffn.net.2", LoraPart::kDown);
  expect(p + "blocks.1.norm3.diff_b", "blocks.1.norm2", LoraPart::kBias);
  expect(p + "blocks.1.diff_m", "blocks.1.scale_shift_table", LoraPart::kWhole);
  expect(p + "blocks.1.modulation.diff", "blocks.1.scale_shift_table", LoraPart::kWhole);
  expect(p + "head.head.diff", "proj_out", LoraPart::kWhole);
  expect(p + "head.diff_m", "scale_shift_table", LoraPart::kWhole);
  expect(p + "blocks.0.self_attn.q.lora.down.weight", "blocks.0.attn1.to_q", LoraPart::kDown);
  expect(p + "blocks.0.self_attn.q.lora.up.weight", "blocks.0.attn1.to_q", LoraPart::kUp);
  expect("pipe.dit.blocks.0.self_attn.q.lora_B.default.weight", "blocks.0.attn1.to_q", LoraPart::kUp);
  expect(p + "patch_embedding.lora_down.weight", "patch_embedding", LoraPart::kDown);
  expect(p + "time_projection.1.lora_up.weight", "condition_embedder.time_proj", LoraPart::kUp);
  expect(p + "time_embedding.2.diff_b", "condition_embedder.time_embedder.linear_2", LoraPart::kBias);
  expect(p + "text_embedding.0.lora_A.weight", "condition_embedder.text_embedder.linear_1", LoraPart::kDown);
  expect(p + "img_emb.proj.1.lora_A.weight", "condition_embedder.image_embedder.ff.net.0.proj", LoraPart::kDown);
  expect(p + "img_emb.proj.4.diff", "condition_embedder.image_embedder.norm2", LoraPart::kWhole);
  expect(p + "img_emb.emb_pos.diff", "condition_embedder.image_embedder.pos_embed", LoraPart::kWhole);
  expect(p + "vace_blocks.0.before_proj.lora_A.weight", "vace_blocks.0.proj_in", LoraPart::kDown);
  expect(p + "vace_blocks.1.after_proj.lora_A.weight", "vace_blocks.1.proj_out", LoraPart::kDown);
  expect(p + "vace_blocks.1.self_attn.k.dora_scale", "vace_blocks.1.attn1.to_k", LoraPart::kDropped);
  expect("base_model.model.blocks.0.attn1.to_k.lora_B.weight", "blocks.0.attn1.to_k", LoraPart::kUp);
  expect("model.diffusion_model.blocks.0.self_attn.k.lora_up.weight", "blocks.0.attn1.to_k", LoraPart::kUp);
}

TEST_F(LoraNamesTest, Kohya) {
  expect("lora_unet_blocks_0_self_attn_q.lora_down.weight", "blocks.0.attn1.to_q", LoraPart::kDown);
  expect("lora_unet_blocks_2_cross_attn_o.lora_up.weight", "blocks.2.attn2.to_out.0", LoraPart::kUp);
  expect("lora_unet_blocks_1_cross_attn_k_img.alpha", "blocks.1.attn2.add_k_proj", LoraPart::kAlpha);
  expect("lora_unet_blocks_1_ffn_0.alpha", "blocks.1.ffn.net.0.proj", LoraPart::kAlpha);
  expect("lora_unet_vace_blocks_1_ffn_2.lora_down.weight", "vace_blocks.1.ffn.net.2", LoraPart::kDown);
  expect("lora_unet_blocks_1.diff_m", "blocks.1.scale_shift_table", LoraPart::kWhole);
  expect("lora_unet__blocks_0_self_attn_q.lora_down.weight", "blocks.0.attn1.to_q", LoraPart::kDown);
}

TEST_F(LoraNamesTest, Lycoris) {
  expect("lycoris_blocks_0_self_attn_q.hada_w1_a", "blocks.0.attn1.to_q", LoraPart::kHadamard1A);
  expect("lora_unet_blocks_0_self_attn_q.hada_w2_b", "blocks.0.attn1.to_q", LoraPart::kHadamard2B);
  expect("diffusion_model.blocks.0.ffn.2.lokr_w1", "blocks.0.ffn.net.2", LoraPart::kKronecker1);
  expect("lycoris_blocks_1_cross_attn_k_img.lokr_w1_b", "blocks.1.attn2.add_k_proj", LoraPart::kKronecker1B);
  expect("lycoris_blocks_1_ffn_0.lokr_w2_a", "blocks.1.ffn.net.0.proj", LoraPart::kKronecker2A);
  expect("lycoris_blocks_1_ffn_0.alpha", "blocks.1.ffn.net.0.proj", LoraPart::kAlpha);
  expect("diffusion_model.blocks.0.self_attn.q.lora_mid.weight", "blocks.0.attn1.to_q", LoraPart::kUnsupported);
  expect("lycoris_patch_embedding.hada_t1", "patch_embedding", LoraPart::kUnsupported);
  expect_none("lycoris_blocks_3_ffn_0.lokr_w2_a");  // three layers
  expect_none("lora_te_mlp_fc1.oft_blocks");
  EXPECT_EQ(LoraNames::family("x.lora_mid.weight"), "LoCon with lora_mid");
}

TEST_F(LoraNamesTest, DiffSynth) {
  expect("blocks.0.self_attn.q.lora_A.default.weight", "blocks.0.attn1.to_q", LoraPart::kDown);
  expect("blocks.0.ffn.2.lora_B.default.weight", "blocks.0.ffn.net.2", LoraPart::kUp);
  expect("transformer.blocks.0.attn1.to_q.lora_A.default.weight", "blocks.0.attn1.to_q", LoraPart::kDown);
}

TEST_F(LoraNamesTest, OthersMatchNothing) {
  expect_none("transformer.blocks.3.attn1.to_q.lora_A.weight");     // three layers
  expect_none("diffusion_model.blocks.0.self_attn.q.weight");       // a weight, no change of one
  expect_none("diffusion_model.blocks.0.self_attn.q.lora_middle");  // unknown part
  expect_none("diffusion_model.blocks.0.self_attn.norm_q.diff_b");  // has no bias
  expect_none("diffusion_model.blocks.0.norm1.diff_m");
  expect_none("double_blocks.0.img_attn.qkv.lora_A.weight");
  expect_none("lora_te_text_model_encoder_layers_0_mlp_fc1.alpha");
  expect_none("");
  expect_none(".alpha");
}

// Every tensor of the model is reached by every spelling of it.
TEST_F(LoraNamesTest, EveryTensorHasItsNames) {
  const auto module_of = [](std::string name) {
    for (const std::string end : {".weight", ".bias"})
      if (name.ends_with(end)) name.resize(name.size() - end.size());
    return name;
  };
  for (const io::TensorSpec& spec : wan::transformer_tensors(everything())) {
    const bool bias = spec.role == io::TensorRole::kBias;
    const std::string module = module_of(spec.name);
    EXPECT_EQ(bias ? names_.bias(module) : names_.weight(module), spec.name);
    const std::string end = bias ? ".diff_b" : ".diff";
    const LoraPart part = bias ? LoraPart::kBias : LoraPart::kWhole;
    expect("transformer." + module + end, module, part);
    if (spec.alias(io::NamingScheme::kOriginal).parts > 1) continue;
    std::string original = module_of(spec.name_in(io::NamingScheme::kOriginal));
    expect("diffusion_model." + original + end, module, part);
    for (char& c : original) c = c == '.' ? '_' : c;
    expect("lora_unet_" + original + end, module, part);
  }
}

}  // namespace
}  // namespace zoetrope::lora
