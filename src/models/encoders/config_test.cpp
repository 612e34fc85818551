#include "models/encoders/config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "models/testing/refusals.h"

namespace zoetrope::encoders {
namespace {

using nlohmann::json;
using refusals::expect_quantized_refused;
using refusals::expect_refused;
using refusals::expect_required;
using refusals::refusal;
using refusals::refusal_with;

json text_encoder_json() {
  return {{"model_type", "umt5"}, {"vocab_size", 1024}, {"d_model", 32},  {"d_kv", 8},
          {"d_ff", 64},           {"num_layers", 2},    {"num_heads", 4}, {"feed_forward_proj", "gated-gelu"}};
}

json clip_json() {
  return {{"hidden_act", "gelu"},     {"hidden_size", 64}, {"intermediate_size", 128}, {"num_hidden_layers", 2},
          {"num_attention_heads", 4}, {"image_size", 28},  {"patch_size", 14}};
}

TEST(Configs, RefuseQuantizedWeights) {
  expect_quantized_refused<TextEncoderConfig>(text_encoder_json());
  expect_quantized_refused<ClipVisionConfig>(clip_json());
}

TEST(TextEncoderConfig, RefusesOtherModels) {
  const json good = text_encoder_json();
  EXPECT_EQ(refusal<TextEncoderConfig>(good), "");
  expect_refused<TextEncoderConfig>(good, "model_type", "t5");
  expect_refused<TextEncoderConfig>(good, "feed_forward_proj", "relu");
  expect_refused<TextEncoderConfig>(good, "vocab_size", 0);
  expect_refused<TextEncoderConfig>(good, "eos_token_id", 1024);
  expect_refused<TextEncoderConfig>(good, "relative_attention_num_buckets", 1);
  expect_refused<TextEncoderConfig>(good, "relative_attention_max_distance", 8);
  for (const char* key : {"vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_heads"}) {
    expect_required<TextEncoderConfig>(good, key);
  }
}

TEST(ImageProcessorConfig, RefusesOtherProcessors) {
  const json good = {{"size", {{"shortest_edge", 224}}}, {"crop_size", 224}};
  EXPECT_EQ(refusal<ImageProcessorConfig>(good), "");
  EXPECT_EQ(refusal_with<ImageProcessorConfig>(good, "image_processor_type", "CLIPImageProcessor"), "");
  expect_refused<ImageProcessorConfig>(good, "image_processor_type", "SiglipImageProcessor");
}

}  // namespace
}  // namespace zoetrope::encoders
