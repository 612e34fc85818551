// The operations of a run against the published figures (cost-model.md section 1) and against the sums of wan.md.
#include "models/wan/step_work.h"

#include <gtest/gtest.h>

#include "io/weights/weight_stream.h"
#include "models/encoders/cost.h"
#include "models/wan/model_flops.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/vae/vae_cost.h"
#include "models/wan/vae/vae_layout.h"

namespace zoetrope::wan {
namespace {

ModelConfigs model_14b() {
  ModelConfigs configs;
  configs.experts = {TransformerConfig()};
  return configs;
}

ModelConfigs model_1_3b() {
  ModelConfigs configs = model_14b();
  configs.experts[0].num_attention_heads = 12;
  configs.experts[0].ffn_dim = 8960;
  configs.experts[0].num_layers = 30;
  return configs;
}

RunSize video(int64_t height, int64_t width) {
  RunSize size;
  size.height = height;
  size.width = width;
  size.frames = 81;
  return size;
}

double forward(const planner::Work& work) {
  const auto tokens = static_cast<double>(work.tokens);
  const double attention = 4 * tokens * tokens * static_cast<double>(work.heads * work.head_dim);
  return static_cast<double>(work.layers) * (work.linear_flop + work.cross_flop + attention) + work.ends_flop;
}

TEST(StepWork, IsThePublishedOperationsOfAForward) {
  const planner::Work large = work(model_14b(), video(720, 1280)), small = work(model_14b(), video(480, 832));
  EXPECT_EQ(large.tokens, 75600);
  EXPECT_EQ(small.tokens, 32760);
  EXPECT_NEAR(forward(large), 6.52e15, 0.005e15);
  EXPECT_NEAR(forward(small), 1.68e15, 0.005e15);
  EXPECT_NEAR(forward(work(model_1_3b(), video(480, 832))), 0.283e15, 0.0005e15);
  // 72 % of the large one is attention.
  EXPECT_NEAR(4.0 * 75600 * 75600 * 5120 * 40 / forward(large), 0.72, 0.005);
}

// wan.md section 8: with an image 4·N·S·d more a layer (its keys are not made in a forward).
TEST(StepWork, CountsTheKeysOfAnImage) {
  ModelConfigs image = model_14b();
  TransformerConfig& config = image.experts[0];
  config.in_channels = 36;
  config.image_dim = 1280;
  config.added_kv_proj_dim = 5120;
  const double n = 75600, d = 5120, channels = 2 * n * d * 4 * (36 - 16);
  const double text = forward(work(model_14b(), video(720, 1280)));
  EXPECT_DOUBLE_EQ(forward(work(image, video(720, 1280))), text + 40 * 4 * n * 257 * d + channels);
  config.pos_embed_seq_len = 514;
  EXPECT_DOUBLE_EQ(forward(work(image, video(720, 1280))), text + 40 * 4 * n * 514 * d + channels);
  RunSize size = video(720, 1280);
  size.image_rows = 100;
  EXPECT_DOUBLE_EQ(forward(work(image, size)), text + 40 * 4 * n * 100 * d + channels);
  config.image_dim.reset();
  EXPECT_DOUBLE_EQ(forward(work(image, size)), text + channels);
}

// Eight blocks in addition to the forty, the control video's patches, the multiplication before the first and those
// after each.
TEST(StepWork, CountsTheControlStream) {
  ModelConfigs vace = model_14b();
  for (int64_t layer = 0; layer < 40; layer += 5) vace.experts[0].vace_layers.push_back(layer);
  const double n = 75600, d = 5120, ends = 2 * n * d * 4 * (16 + 16);
  const double text = forward(work(model_14b(), video(720, 1280)));
  EXPECT_NEAR(forward(work(vace, video(720, 1280))), (text - ends) / 40 * 48 + ends + 2 * n * d * (4 * 96 + 9 * d),
              1e-9 * text);
  // A reference image is a latent frame more.
  RunSize size = video(720, 1280);
  size.reference_images = 2;
  EXPECT_EQ(work(vace, size).tokens, 23 * 45 * 80);
}

// Of all layers: VACE's too, whose matrices between the streams are none of a layer's.
TEST(StepWork, KnowsWhatIsMultipliedInInt8) {
  ModelConfigs configs = model_1_3b();
  const RunSize size = video(480, 832);
  EXPECT_EQ(work(configs, size).int8_share, 0);
  const TransformerConfig plain = configs.experts[0];
  configs.experts[0] = plain.with_int8("inner");
  const planner::Work inner = work(configs, size);
  EXPECT_NEAR(inner.int8_share, 28.0 / 30, 1e-12);
  EXPECT_LT(inner.weights.layer.count(), work(model_1_3b(), size).weights.layer.count() * 2 / 3) << "half the bytes";
  configs.experts[0] = plain.with_int8("3,5-6");
  EXPECT_NEAR(work(configs, size).int8_share, 0.1, 1e-12);
  RunSize wide = size;
  wide.transformer = DType::kF32;
  EXPECT_EQ(work(configs, wide).int8_share, 0) << "only where the others are bf16";
  TransformerConfig control = plain;
  for (int64_t layer = 0; layer < 30; layer += 2) control.vace_layers.push_back(layer);
  configs.experts[0] = control.with_int8("all");
  EXPECT_NEAR(work(configs, size).int8_share, 1, 1e-12);
  configs.experts[0] = control.with_int8("40");
  EXPECT_NEAR(work(configs, size).int8_share, 1.0 / 45, 1e-12);
}

// Three of four steps are the first expert's.
TEST(StepWork, ExpertsInInt8CountByTheirSteps) {
  ModelConfigs configs = model_1_3b();
  const TransformerConfig plain = configs.experts[0];
  RunSize size = video(480, 832);
  size.weight_memory = 1'000'000'000;
  size.share_of_first = 0.75;
  const auto weights = [&](const char* first, const char* second, int tensor) {
    configs.experts = {plain.with_int8(first), plain.with_int8(second)};
    return work(configs, size).weights.part(tensor);
  };
  for (const int tensor : {1, 2}) {
    const auto all = weights("all", "all", tensor), one = weights("0", "0", tensor),
               mixed = weights("all", "0", tensor);
    EXPECT_LT(all.layer, one.layer);
    for (const auto of : {&planner::Work::LayerWeights::Part::layer, &planner::Work::LayerWeights::Part::read})
      EXPECT_NEAR(static_cast<double>((mixed.*of).count()),
                  0.75 * static_cast<double>((all.*of).count()) + 0.25 * static_cast<double>((one.*of).count()), 1);
    EXPECT_EQ(mixed.fetched,
              std::llround(0.75 * static_cast<double>(all.fetched) + 0.25 * static_cast<double>(one.fetched)));
  }
  EXPECT_NEAR(work(configs, size).int8_share, 0.75 + 0.25 / 30, 1e-12);
}

TEST(StepWork, IsThatOfTheFiveBillionModel) {
  ModelConfigs five = model_14b();
  TransformerConfig& config = five.experts[0];
  config.num_attention_heads = 24;
  config.ffn_dim = 14336;
  config.num_layers = 30;
  config.in_channels = config.out_channels = 48;
  const ForwardFlop flop = forward_flop(config, 27280, 512);
  EXPECT_NEAR(flop.total(), 0.517e15, 0.0015e15);
  EXPECT_NEAR(30 * flop.self_attention / flop.total(), 0.53, 0.005);
}

TEST(StepWork, OfTheDecoderIsLessThanTheDenseCount) {
  const VaeConfig vae;
  for (const auto& [height, width, quoted] : {std::tuple{720, 1280, 639e12}, std::tuple{480, 832, 275e12}}) {
    const double dense = vae_decoder_dense_flop(vae, vae.latent_frames(81), height / 8, width / 8);
    EXPECT_NEAR(dense, quoted, 0.01 * quoted);
    const planner::Work executed = work(model_14b(), video(height, width));
    EXPECT_LT(executed.vae_flop, 0.95 * dense);
    EXPECT_GT(executed.vae_flop, 0.6 * dense);
    EXPECT_EQ(executed.vae_rows, height / 8);
  }
}

TEST(StepWork, TilesAreDecodedByOneRankAndOverlap) {
  RunSize size = video(480, 832);
  const double whole = work(model_14b(), size).vae_flop;
  size.vae_tiling = true;
  EXPECT_EQ(work(model_14b(), size).vae_rows, 1);
  EXPECT_GT(work(model_14b(), size).vae_flop, 1.2 * whole);
  // One tile is the whole picture.
  RunSize small = video(256, 256), tiled = small;
  tiled.vae_tiling = true;
  EXPECT_EQ(work(model_14b(), tiled).vae_flop, work(model_14b(), small).vae_flop);
  EXPECT_EQ(work(model_14b(), tiled).vae_rows, 32);
}

// Its two halves; where there is none both are grey, which is encoded once.
TEST(StepWork, AControlVideoIsEncodedTwice) {
  ModelConfigs vace = model_14b();
  vace.experts[0].vace_layers = {0, 5};
  RunSize size = video(480, 832);
  const double once = work(vace, size).condition_flop;
  EXPECT_GT(once, 0);
  size.control_video = true;
  EXPECT_EQ(work(vace, size).condition_flop, 2 * once);
}

// Of 480 × 832 pixels: three rows of tiles, of 256, 256 and 96 pixels, and five columns, of 256 four times and 64.
TEST(StepWork, ConditionsAreEncodedInTiles) {
  ModelConfigs image = model_14b();
  image.experts[0].in_channels = 36;
  RunSize size = video(480, 832);
  const double whole = work(image, size).condition_flop;
  EXPECT_DOUBLE_EQ(whole, vae_encode_flops(image.vae, 81, 480, 832));
  size.vae_tiling = true;
  double tiles = 0;
  for (const int64_t rows : {256, 256, 96})
    for (const int64_t columns : {256, 256, 256, 256, 64}) tiles += vae_encode_flops(image.vae, 81, rows, columns);
  EXPECT_DOUBLE_EQ(work(image, size).condition_flop, tiles);
  EXPECT_GT(tiles, 1.2 * whole);
  // One tile is the whole picture.
  RunSize small = video(256, 256), tiled = small;
  tiled.vae_tiling = true;
  EXPECT_EQ(work(image, tiled).condition_flop, work(image, small).condition_flop);
}

TEST(StepWork, FollowsGuidanceDtypeAndExperts) {
  RunSize size = video(480, 832);
  const planner::Work plain = work(model_14b(), size);
  EXPECT_EQ(plain.branches, 1);
  EXPECT_EQ(plain.latent_bytes, 21 * 60 * 104 * 16 * 2);
  // All but the table of tokens' vectors, of which a prompt reads a few rows.
  EXPECT_EQ(plain.text_weights.count(), 4 * (int64_t{5'680'910'336} - int64_t{256'384} * 4096));
  EXPECT_EQ(plain.text_read, plain.text_weights);
  ModelConfigs decoded = model_14b();
  const int64_t weights = plain.text_weights.count() / 4;
  decoded.text_layers = {weights, true};  // as fp8
  EXPECT_EQ(work(decoded, size).text_weights, plain.text_weights);
  EXPECT_EQ(work(decoded, size).text_read.count(), 2 * weights);
  EXPECT_EQ(plain.weights_read.count(), 4 * (int64_t{14'288'491'584} + 126'892'531));
  EXPECT_EQ(plain.text_element_bytes, 4);
  size.text_encoder = DType::kBF16;
  EXPECT_EQ(work(model_14b(), size).text_element_bytes, 2);
  size.text_encoder = DType::kF32;
  size.prompts = 2;
  size.transformer = DType::kF32;
  ModelConfigs two = model_14b();
  two.experts.push_back(two.experts[0]);
  const planner::Work guided = work(two, size);
  EXPECT_EQ(guided.branches, 2);
  EXPECT_EQ(guided.element_bytes, 4);
  EXPECT_EQ(guided.text_element_bytes, 4);
  EXPECT_EQ(guided.latent_bytes, 2 * plain.latent_bytes);
  EXPECT_DOUBLE_EQ(guided.text_flop, 2 * plain.text_flop);
  EXPECT_EQ((guided.weights_read - plain.weights_read).count(), 4 * int64_t{14'288'491'584});
  two.transformer_file_bytes = 9'000'000'000;  // as GGUF stores it
  EXPECT_EQ(work(two, size).weights_read.count(), 2 * int64_t{9'000'000'000} + 4 * int64_t{126'892'531});
  // One prompt of 7 tokens instead of 512.
  size.prompts = 1;
  size.prompt_tokens = {7};
  EXPECT_DOUBLE_EQ(work(two, size).text_flop, encoders::text_encoder_flop(two.text_encoder, 7));
}

// What steps fetch again and again is not read before them, too.
TEST(StepWork, WhatIsStreamedIsNotLoaded) {
  RunSize size = video(480, 832);
  const auto read = [&](int64_t weight_memory) {
    size.weight_memory = weight_memory;
    return work(model_14b(), size).weights_read;
  };
  const planner::Bytes all = read(0), vae = planner::Bytes(4 * int64_t{126'892'531});
  EXPECT_EQ(read(60'000'000'000), all);
  const planner::Bytes half = read(16'000'000'000), quarter = read(8'000'000'000);
  EXPECT_GT(half, (all - vae) / 3 + vae);
  EXPECT_LT(half, (all - vae) / 3 * 2 + vae);
  EXPECT_LT(quarter, half);
  size.weight_memory = 0;
  size.as_stored = true;
  const planner::Bytes as_stored = work(model_14b(), size).weights_read;
  EXPECT_LE(as_stored, quarter);
  EXPECT_LT(as_stored, (all - vae) / 5 + vae);  // a block, and weights that prompts meet once
}

// Without files: only what stays is asked.
class NoStorage final : public io::WeightStream::Storage {
  void read(std::span<const io::WeightStream::Range>) override {}
  void release(const io::WeightStream::Range&) override {}
};

// What the planner prices is what the stream does, whatever the memory.
TEST(StepWork, FetchesWhatAStreamDoesNotKeep) {
  const ModelConfigs configs = model_1_3b();
  const TransformerConfig& config = configs.experts[0];
  RunSize size = video(480, 832);
  size.weight_cache = true;
  const planner::Work::LayerWeights all = work(configs, size).weights;
  EXPECT_EQ(all.fetched, 0);
  // 1536 × 1536: q, k, v, out of self-attention, q and out of cross-attention; two of 8960 × 1536. bf16, packed.
  const int64_t elements = 6 * 1536 * 1536 + 2 * 8960 * 1536;
  EXPECT_NEAR(static_cast<double>(all.layer.count()), 2.0 * elements, 0.02 * elements);
  const auto block = static_cast<size_t>(all.layer.count());
  const size_t keys = block * 2 * 1536 * 1536 / static_cast<size_t>(elements);
  std::vector<io::WeightStream::Part> parts;
  for (int i = 0; i < 30; ++i) parts.push_back({{{nullptr, block}}, true});
  for (int i = 0; i < 30; ++i) parts.push_back({{{nullptr, keys}}, false});
  const StreamedBytes least = streamed_bytes(config, size.transformer, 0);
  const int64_t others = least.least - 2 * all.layer.count();
  const int64_t most = others + 30 * static_cast<int64_t>(block + keys);
  for (int64_t memory = least.least; memory <= most; memory += (most - least.least) / 50) {
    size.weight_memory = memory;
    const io::WeightStream stream(std::make_shared<NoStorage>(), parts, static_cast<size_t>(memory - others));
    const planner::Work::LayerWeights streamed = work(configs, size).weights;
    EXPECT_EQ(streamed.fetched, 30 - static_cast<int64_t>(stream.kept_parts())) << memory;
    EXPECT_EQ(streamed.read, all.layer);
    EXPECT_EQ(streamed.packed, planner::Bytes());
  }
}

TEST(StepWork, TensorRanksReadTheirPartOfALayer) {
  const ModelConfigs configs = model_1_3b();
  RunSize size = video(480, 832);
  const planner::Work whole = work(configs, size);
  EXPECT_EQ(whole.weights.parts.size(), 6U);  // divisors of twelve heads
  EXPECT_EQ(whole.weights.part(1).layer, whole.weights.layer);
  EXPECT_EQ(whole.weights.part(4).layer.count(), whole.weights.layer.count() / 4);
  // 140 units of the feed-forward over twelve ranks: eleven or twelve each.
  const double d = 1536, n = static_cast<double>(whole.tokens);
  EXPECT_DOUBLE_EQ(whole.layer_flop(12), 2 * n * (6 * d * d / 12 + 2 * d * 8960 * 12 / 140) + whole.cross_flop / 12);
  EXPECT_DOUBLE_EQ(whole.layer_flop(4), whole.layer_flop(1) / 4);
  // With as much memory a rank keeps more layers of its part.
  size.weight_memory = 1'000'000'000;
  const planner::Work::LayerWeights streamed = work(configs, size).weights;
  EXPECT_GT(streamed.fetched, 15);
  EXPECT_EQ(streamed.part(1).fetched, streamed.fetched);
  EXPECT_LT(streamed.part(2).fetched, streamed.fetched);
  EXPECT_EQ(streamed.part(6).fetched, 0);
}

TEST(StepWork, PacksAnewFromWhatTheFilesHold) {
  ModelConfigs configs = model_1_3b();
  RunSize size = video(480, 832);
  size.as_stored = true;
  const planner::Work::LayerWeights stored = work(configs, size).weights;
  EXPECT_TRUE(stored.in_memory);
  EXPECT_EQ(stored.fetched, 30);
  const int64_t elements = 6 * 1536 * 1536 + 2 * 8960 * 1536;
  EXPECT_EQ(stored.read.count(), 4 * elements);  // float32
  EXPECT_EQ(stored.packed, stored.read);
  size.as_stored = false;
  size.weight_memory = 1'000'000'000;
  const planner::Work::LayerWeights streamed = work(configs, size).weights;
  EXPECT_FALSE(streamed.in_memory);
  EXPECT_GT(streamed.fetched, 15);
  EXPECT_LT(streamed.fetched, 30);
  // Quantised files are smaller than what they are read as, but have as many values to convert.
  configs.transformer_file_bytes = 1'500'000'000;
  EXPECT_LT(work(configs, size).weights.read.count(), 5 * elements / 4);
  EXPECT_EQ(work(configs, size).weights.packed.count(), 2 * elements);
  size.branches_apart = true;
  size.prompts = 2;
  EXPECT_EQ(work(configs, size).forwards(1), 2);
}

TEST(StepWork, ABatchIsThatOfItsVideos) {
  RunSize size;
  size.height = 480;
  size.width = 832;
  size.frames = 81;
  size.prompts = 2;
  const planner::Work one = work(model_14b(), size);
  size.videos = 4;
  size.prompts = 8;
  const planner::Work batch = work(model_14b(), size);
  EXPECT_EQ(batch.videos, 4);
  EXPECT_EQ(batch.branches, 2);
  EXPECT_EQ(batch.batch(2), 4);
  EXPECT_DOUBLE_EQ(batch.flop(), 4 * one.flop());
  EXPECT_EQ(batch.weights_read, one.weights_read);
}

}  // namespace
}  // namespace zoetrope::wan
