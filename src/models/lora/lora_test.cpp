#include "models/lora/lora.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/project_folders.h"
#include "io/weights/random_weights.h"
#include "io/weights/test_files.h"
#include "models/wan/tensor_tables.h"
#include "tensor/half.h"

namespace zoetrope::lora {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

wan::TransformerConfig small() {
  wan::TransformerConfig config;
  config.num_attention_heads = 2;
  config.attention_head_dim = 4;
  config.ffn_dim = 12;
  config.num_layers = 2;
  config.in_channels = 3;
  config.text_dim = 10;
  config.freq_dim = 6;
  return config;
}

Tensor numbers(const Shape& shape, int seed) {
  Tensor tensor(DType::kF32, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    tensor.data<float>()[i] = std::sin(static_cast<float>(i * 5 + seed));
  }
  return tensor;
}

class LoraTest : public testing::Test {
 public:
  // Adds a tensor to the next file.
  LoraTest& with(const std::string& key, Tensor tensor) {
    tensors_.insert_or_assign(key, std::move(tensor));
    return *this;
  }
  LoraTest& with(const std::string& key, float number) {
    Tensor tensor(DType::kF32, {});
    tensor.data<float>()[0] = number;
    return with(key, std::move(tensor));
  }
  // A pair of rank 2 for a tensor [out, in].
  LoraTest& with_pair(const std::string& down, const std::string& up, int64_t out, int64_t in) {
    return with(down, numbers({2, in}, 1)).with(up, numbers({out, 2}, 2));
  }
  LoraTest& with_metadata(const std::string& json) {
    metadata_ = json;
    return *this;
  }

  // The file of what was added, opened.
  Lora open(double strength = 1, const wan::TransformerConfig& config = small()) {
    return open_as("lora.safetensors", strength, config);
  }
  Lora open_as(const char* file, double strength = 1, const wan::TransformerConfig& config = small()) {
    io::SafetensorsWriter writer;
    for (const auto& [key, tensor] : tensors_) writer.add(key, tensor);
    if (!metadata_.empty()) writer.set_metadata("lora_adapter_metadata", metadata_);
    const auto path = folder_ / file;
    writer.write(path);
    tensors_.clear();
    metadata_.clear();
    return open_lora(path, strength, wan::transformer_tensors(config));
  }
  std::string refusal() {
    return error_of([&] { open(); });
  }

  // What the LoRA adds to a tensor.
  std::vector<double> added(const Lora& lora, const std::string& tensor) const {
    const auto base = io::random_weights(wan::transformer_tensors(small()), "transformer", 0);
    const auto merged = io::merged_source(base, lora.deltas);
    const Shape shape = base->info(tensor).shape;
    Tensor before(DType::kF32, shape), after(DType::kF32, shape);
    base->read(tensor, before);
    merged->read(tensor, after);
    std::vector<double> difference;
    for (int64_t i = 0; i < shape.size(); ++i) {
      difference.push_back(static_cast<double>(after.data<float>()[i]) - before.data<float>()[i]);
    }
    return difference;
  }
  // Holds it against scale · up · down of with_pair(), or any other formula of the element.
  void expect_added(const Lora& lora, const std::string& tensor, const std::function<double(int64_t)>& formula) const {
    const std::vector<double> found = added(lora, tensor);
    for (size_t i = 0; i < found.size(); ++i) {
      // A few roundings of numbers below 4.
      ASSERT_NEAR(found[i], formula(static_cast<int64_t>(i)), 4e-6) << tensor << " element " << i;
    }
  }
  static std::function<double(int64_t)> pair(double scale, int64_t out, int64_t in) {
    return [=](int64_t i) {
      const Tensor down = numbers({2, in}, 1), up = numbers({out, 2}, 2);
      double sum = 0;
      for (int64_t r = 0; r < 2; ++r) sum += up.data<float>()[i / in * 2 + r] * down.data<float>()[r * in + i % in];
      return scale * sum;
    };
  }

  TestFolder folder_;
  std::map<std::string, Tensor> tensors_;
  std::string metadata_;
};

constexpr char kQuery[] = "blocks.1.attn1.to_q";

TEST_F(LoraTest, EverySchemeGivesTheSameChange) {
  const std::string original = "blocks.1.self_attn.q";
  const std::pair<std::string, std::string> schemes[] = {
      {std::string("transformer.") + kQuery + ".lora_A.weight",
       std::string("transformer.") + kQuery + ".lora_B.weight"},
      {"diffusion_model." + original + ".lora_down.weight", "diffusion_model." + original + ".lora_up.weight"},
      {"diffusion_model." + original + ".lora_A.weight", "diffusion_model." + original + ".lora_B.weight"},
      {"lora_unet_blocks_1_self_attn_q.lora_down.weight", "lora_unet_blocks_1_self_attn_q.lora_up.weight"},
      {original + ".lora_A.default.weight", original + ".lora_B.default.weight"}};
  for (const auto& [down, up] : schemes) {
    const Lora lora = with_pair(down, up, 8, 8).open(0.5);
    EXPECT_EQ(lora.tensors, 1) << down;
    EXPECT_EQ(lora.least_rank, 2);
    EXPECT_EQ(lora.largest_rank, 2);
    EXPECT_THAT(lora.warnings, IsEmpty());
    EXPECT_GT(lora.scratch_elements, 0);
    expect_added(lora, std::string(kQuery) + ".weight", pair(0.5, 8, 8));
  }
}

TEST_F(LoraTest, AlphaIsDividedByTheRank) {
  with_pair("lora_unet_blocks_0_ffn_0.lora_down.weight", "lora_unet_blocks_0_ffn_0.lora_up.weight", 12, 8);
  const Lora lora = with("lora_unet_blocks_0_ffn_0.alpha", 5).open(0.5);
  EXPECT_EQ(io::resident_kilobytes("lora.safetensors"), 0);
  expect_added(lora, "blocks.0.ffn.net.0.proj.weight", pair(0.5 * 5 / 2, 12, 8));
}

std::string metadata(const std::string& more) {
  return "{\"transformer.r\": 2, \"transformer.lora_alpha\": 6" + more + "}";
}

TEST_F(LoraTest, MetadataSaysAlpha) {
  const auto scale_with = [&](const std::string& text) {
    const std::string name = std::string("transformer.") + kQuery;
    with_pair(name + ".lora_A.weight", name + ".lora_B.weight", 8, 8);
    return with_metadata(text).open().deltas.at(std::string(kQuery) + ".weight").at(0).scale;
  };
  EXPECT_EQ(scale_with("{}"), 1);
  EXPECT_EQ(scale_with(metadata("")), 3);
  EXPECT_EQ(scale_with(metadata(", \"transformer.use_rslora\": true")), 6 / std::sqrt(2.0));
  for (const char* name : {"to_q", "blocks.1.attn1.to_q", "self_attn.q", "blocks.[0-9]+.self_attn.q"})
    EXPECT_EQ(scale_with(metadata(fmt::format(", \"transformer.alpha_pattern\": {{\"{}\": 4}}", name))), 2) << name;
  EXPECT_EQ(scale_with(metadata(", \"transformer.alpha_pattern\": {\"o_q\": 4, \"attn2.to_q\": 8}")), 3);
  EXPECT_EQ(scale_with(metadata(", \"transformer.alpha_pattern\": {\"blocks.[0-9]+.attn1.to_.\": 4}")), 2);
  // The first that fits, in the order of the file.
  EXPECT_EQ(scale_with(metadata(", \"transformer.alpha_pattern\": {\"to_q\": 4, \"attn1.to_q\": 8}")), 2);
  EXPECT_EQ(scale_with("{\"transformer.r\": 9, \"transformer.rank_pattern\": {\"self_attn.q\": 2}}"), 1);
  // As diffusers' save_lora_adapter writes it; and beside another component's.
  EXPECT_EQ(scale_with(R"({"r": 2, "lora_alpha": 6, "alpha_pattern": {"attn2.to_q": 8}})"), 3);
  EXPECT_EQ(scale_with(R"({"transformer_2.lora_alpha": 10, "transformer.lora_alpha": 6})"), 3);
}

TEST_F(LoraTest, ConfigBesideAFileOfPeftSaysAlpha) {
  folder_.write("adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6, "alpha_pattern": {}})");
  const auto scale_of = [&](const char* file) {
    with_pair("base_model.model.blocks.1.attn1.to_q.lora_A.weight",
              "base_model.model.blocks.1.attn1.to_q.lora_B.weight", 8, 8);
    const Lora lora = open_as(file);
    EXPECT_EQ(lora.config_file.empty(), std::string(file) == "lora.safetensors");
    return lora.deltas.at(std::string(kQuery) + ".weight").at(0).scale;
  };
  EXPECT_EQ(scale_of("adapter_model.safetensors"), 3);
  EXPECT_EQ(scale_of("lora.safetensors"), 1);
}

TEST_F(LoraTest, MetadataOfOtherComponentsDoesNotMatterBesideAlpha) {
  with_pair("transformer.blocks.0.attn1.to_q.lora_A.weight", "transformer.blocks.0.attn1.to_q.lora_B.weight", 8, 8);
  with("transformer.blocks.0.attn1.to_q.alpha", 6).with_metadata("{\"transformer_2.lora_alpha\": 16}");
  EXPECT_EQ(open().deltas.at("blocks.0.attn1.to_q.weight").at(0).scale, 3);
}

// PEFT has other names for LoHa's and LoKr's, whose whole factors it scales too.
TEST_F(LoraTest, ConfigOfLoHaAndLoKrSaysAlpha) {
  folder_.write("adapter_config.json", R"({"r": 2, "alpha": 8, "rank_pattern": {}})");
  const std::string module = std::string("base_model.model.") + kQuery + ".", tensor = std::string(kQuery) + ".weight";
  for (const char* factor : {"hada_w1_", "hada_w2_"})
    with(module + factor + "a", numbers({8, 2}, 1)).with(module + factor + "b", numbers({2, 8}, 2));
  EXPECT_EQ(open_as("adapter_model.safetensors").deltas.at(tensor).at(0).scale, 4);
  for (const auto& [file, scale] : {std::pair("adapter_model.safetensors", 4.0), std::pair("lora.safetensors", 1.0)}) {
    with(module + "lokr_w1", numbers({2, 2}, 1)).with(module + "lokr_w2", numbers({4, 4}, 2));
    EXPECT_EQ(open_as(file).deltas.at(tensor).at(0).scale, scale);
  }
}

// A matcher that goes back and forth takes hours for this one.
TEST_F(LoraTest, NoPatternTakesLong) {
  with_pair("transformer.blocks.0.attn1.to_q.lora_A.weight", "transformer.blocks.0.attn1.to_q.lora_B.weight", 8, 8);
  with_metadata(metadata(", \"transformer.alpha_pattern\": {\"(.*)*x\": 4, \"(.*)*(.*)*_q\": 8}"));
  EXPECT_EQ(open().deltas.at("blocks.0.attn1.to_q.weight").at(0).scale, 4);
}

TEST_F(LoraTest, MetadataOfAnotherRankOrNoMetadataIsRefused) {
  const auto refusal_with = [&](const std::string& text) {
    with_pair("transformer.blocks.0.attn1.to_q.lora_A.weight", "transformer.blocks.0.attn1.to_q.lora_B.weight", 8, 8);
    return with_metadata(text).refusal();
  };
  EXPECT_THAT(refusal_with("{\"transformer.r\": 4}"),
              AllOf(HasSubstr("says rank 4 of 'blocks.0.attn1.to_q'"), HasSubstr("rank 2")));
  EXPECT_THAT(refusal_with("{\"transformer.r\": \"four\"}"), HasSubstr("transformer.r"));
  EXPECT_THAT(refusal_with("{\"transformer.lora_alpha\": -1}"), HasSubstr("transformer.lora_alpha"));
  EXPECT_THAT(refusal_with("{nonsense"), AllOf(HasSubstr("lora_adapter_metadata"), HasSubstr("JSON")));
  EXPECT_THAT(refusal_with(metadata(", \"transformer.rank_pattern\": {\"to_[q\": 2}")),
              HasSubstr("'to_[q' is not a regular expression"));
  for (const char* pattern : {"(to_.){9}", "(?=to_q).*"})
    EXPECT_THAT(refusal_with(metadata(fmt::format(", \"transformer.rank_pattern\": {{\"{}\": 2}}", pattern))),
                HasSubstr(fmt::format("'{}' has a count", pattern)));
  EXPECT_THAT(refusal_with("{\"transformer_2.lora_alpha\": 16}"),
              AllOf(HasSubstr("has 'transformer_2.lora_alpha' and nothing under 'transformer.'"),
                    HasSubstr("'transformer.lora_alpha'")));
}

// Biases of the second factor are scaled as the product is; whole changes by the strength alone.
TEST_F(LoraTest, BiasesAndWholeChanges) {
  const std::string prefix = "diffusion_model.blocks.0.";
  with_pair(prefix + "self_attn.o.lora_A.weight", prefix + "self_attn.o.lora_B.weight", 8, 8)
      .with(prefix + "self_attn.o.lora_B.bias", numbers({8}, 3))
      .with(prefix + "self_attn.o.alpha", 1)
      .with(prefix + "self_attn.o.diff_b", numbers({8}, 4))
      .with(prefix + "self_attn.o.diff", numbers({8, 8}, 5))
      .with(prefix + "norm3.diff_b", numbers({8}, 6))
      .with(prefix + "cross_attn.norm_k.diff", numbers({8}, 7))
      .with(prefix + "diff_m", numbers({1, 6, 8}, 8))
      .with("diffusion_model.head.diff_m", numbers({1, 2, 8}, 9));
  const Lora lora = open(-0.25);
  EXPECT_THAT(lora.warnings, IsEmpty());
  EXPECT_EQ(lora.tensors, 6);
  const auto of = [](const Shape& shape, int seed, double scale) {
    return [=](int64_t i) { return scale * numbers(shape, seed).data<float>()[i]; };
  };
  const auto product = pair(-0.25 * 0.5, 8, 8);
  const auto whole = of({8, 8}, 5, -0.25);
  expect_added(lora, "blocks.0.attn1.to_out.0.weight", [&](int64_t i) { return product(i) + whole(i); });
  const auto scaled = of({8}, 3, -0.25 * 0.5), plain = of({8}, 4, -0.25);
  expect_added(lora, "blocks.0.attn1.to_out.0.bias", [&](int64_t i) { return scaled(i) + plain(i); });
  expect_added(lora, "blocks.0.norm2.bias", of({8}, 6, -0.25));
  expect_added(lora, "blocks.0.attn2.norm_k.weight", of({8}, 7, -0.25));
  expect_added(lora, "blocks.0.scale_shift_table", of({48}, 8, -0.25));
  expect_added(lora, "scale_shift_table", of({16}, 9, -0.25));
  expect_added(lora, "blocks.0.attn2.to_q.weight", [](int64_t) { return 0; });
}

TEST_F(LoraTest, ConvolutionsTakeTheirKernelsShape) {
  with("diffusion_model.patch_embedding.lora_down.weight", numbers({2, 3, 1, 2, 2}, 1));
  const Lora lora = with("diffusion_model.patch_embedding.lora_up.weight", numbers({8, 2, 1, 1, 1}, 2)).open();
  expect_added(lora, "patch_embedding.weight", pair(1, 8, 12));
}

double at(const Tensor& tensor, int64_t i) { return static_cast<double>(tensor.data<float>()[i]); }

// [rows, rank] · [rank, columns] at element i, in double.
double product(const Tensor& up, const Tensor& down, int64_t row, int64_t column) {
  const int64_t rank = down.extent(0), columns = down.size() / rank;
  double sum = 0;
  for (int64_t r = 0; r < rank; ++r) sum += at(up, row * rank + r) * at(down, r * columns + column);
  return sum;
}

TEST_F(LoraTest, LoHaIsAProductOfProducts) {
  const auto change = [](double scale, int64_t columns) {
    return [=](int64_t i) {
      return scale * product(numbers({8, 2}, 1), numbers({2, columns}, 2), i / columns, i % columns) *
             product(numbers({8, 2}, 3), numbers({2, columns}, 4), i / columns, i % columns);
    };
  };
  for (const char* prefix : {"lycoris_blocks_1_self_attn_q", "diffusion_model.blocks.1.self_attn.q"}) {
    const std::string name = prefix;
    with(name + ".hada_w1_a", numbers({8, 2}, 1)).with(name + ".hada_w1_b", numbers({2, 8}, 2));
    with(name + ".hada_w2_a", numbers({8, 2}, 3)).with(name + ".hada_w2_b", numbers({2, 8}, 4));
    const Lora lora = with(name + ".alpha", 3).open(0.5);
    EXPECT_THAT(lora.warnings, IsEmpty());
    EXPECT_EQ(lora.tensors, 1);
    EXPECT_EQ(lora.largest_rank, 2);
    EXPECT_GT(lora.scratch_elements, 0);
    expect_added(lora, std::string(kQuery) + ".weight", change(0.5 * 3 / 2, 8));
  }
  // A convolution's kernel is so many columns.
  const std::string conv = "lycoris_patch_embedding";
  with(conv + ".hada_w1_a", numbers({8, 2}, 1)).with(conv + ".hada_w1_b", numbers({2, 12}, 2));
  with(conv + ".hada_w2_a", numbers({8, 2}, 3)).with(conv + ".hada_w2_b", numbers({2, 12}, 4));
  expect_added(open(), "patch_embedding.weight", change(1, 12));
}

// Of [12, 8], as [3, 2] ⊗ [4, 4]; alpha is divided by the rank of what is a product, the second first.
TEST_F(LoraTest, LoKrIsAKroneckerProduct) {
  const std::string name = "lycoris_blocks_0_ffn_0";
  const auto change = [](double scale, const auto& large, const auto& small) {
    return [=](int64_t i) { return scale * large(i / 8 / 4, i % 8 / 4) * small(i / 8 % 4, i % 8 % 4); };
  };
  const auto of = [](const Shape& shape, int seed) {
    return [=](int64_t row, int64_t column) { return at(numbers(shape, seed), row * shape[1] + column); };
  };
  const auto of_product = [](const Shape& up, int up_seed, const Shape& down, int down_seed) {
    return [=](int64_t row, int64_t column) {
      return product(numbers(up, up_seed), numbers(down, down_seed), row, column);
    };
  };
  const auto first = of({3, 2}, 1), second = of({4, 4}, 2);
  const auto first_product = of_product({3, 2}, 3, {2, 2}, 4), second_product = of_product({4, 3}, 5, {3, 4}, 6);
  const auto add = [&](bool first_whole, bool second_whole) {
    if (first_whole) with(name + ".lokr_w1", numbers({3, 2}, 1));
    else with(name + ".lokr_w1_a", numbers({3, 2}, 3)).with(name + ".lokr_w1_b", numbers({2, 2}, 4));
    if (second_whole) with(name + ".lokr_w2", numbers({4, 4}, 2));
    else with(name + ".lokr_w2_a", numbers({4, 3}, 5)).with(name + ".lokr_w2_b", numbers({3, 4}, 6));
    with(name + ".alpha", 5);
    const Lora lora = open(0.5);
    EXPECT_THAT(lora.warnings, IsEmpty());
    return lora;
  };
  const std::string tensor = "blocks.0.ffn.net.0.proj.weight";
  expect_added(add(true, true), tensor, change(0.5, first, second));
  expect_added(add(false, true), tensor, change(0.5 * 5 / 2, first_product, second));
  expect_added(add(true, false), tensor, change(0.5 * 5 / 3, first, second_product));
  expect_added(add(false, false), tensor, change(0.5 * 5 / 3, first_product, second_product));
}

TEST_F(LoraTest, LoHaAndLoKrThatAreNotWholeOrDoNotFit) {
  const std::string name = "lycoris_blocks_0_self_attn_q";
  with(name + ".hada_w1_a", numbers({8, 2}, 1)).with(name + ".hada_w1_b", numbers({2, 8}, 2));
  EXPECT_THAT(with(name + ".hada_w2_a", numbers({8, 2}, 3)).refusal(),
              AllOf(HasSubstr("LoHa of 'blocks.0.attn1.to_q' lacks"), HasSubstr("hada_w2_b")));
  with(name + ".hada_w1_a", numbers({8, 2}, 1)).with(name + ".hada_w1_b", numbers({2, 8}, 2));
  with(name + ".hada_w2_a", numbers({8, 2}, 3)).with(name + ".hada_w2_b", numbers({2, 9}, 4));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("hada_w2_b' [2, 9] do not fit"), HasSubstr("[8, 8]")));
  with(name + ".hada_w1_a", numbers({8, 2}, 1)).with(name + ".hada_w1_b", numbers({3, 8}, 2));
  with(name + ".hada_w2_a", numbers({8, 2}, 3)).with(name + ".hada_w2_b", numbers({2, 8}, 4));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("hada_w1_b' [3, 8]"), HasSubstr("differ in rank")));
  EXPECT_THAT(with(name + ".lokr_w1", numbers({2, 2}, 1)).refusal(), HasSubstr("LoKr of 'blocks.0.attn1.to_q'"));
  with(name + ".lokr_w1", numbers({2, 2}, 1)).with(name + ".lokr_w2", numbers({4, 4}, 2));
  EXPECT_THAT(with(name + ".lokr_w2_a", numbers({4, 1}, 3)).refusal(), HasSubstr("once, whole or as a product"));
  with(name + ".lokr_w1", Tensor(DType::kF32, {0, 2})).with(name + ".lokr_w2", numbers({4, 4}, 2));
  EXPECT_THAT(refusal(), HasSubstr("a matrix of at least one element"));
  with(name + ".lokr_w1", numbers({2, 2}, 1)).with(name + ".lokr_w2", numbers({4, 5}, 2));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("[2, 2] and [4, 5] come, do not fit"), HasSubstr("[8, 8]")));
  with(name + ".lokr_w1", numbers({4}, 1)).with(name + ".lokr_w2", numbers({4, 4}, 2));
  EXPECT_THAT(refusal(), HasSubstr("must be a matrix"));
  Tensor bad = numbers({4, 4}, 2);
  bad.data<float>()[3] = NAN;
  with(name + ".lokr_w1", numbers({2, 2}, 1)).with(name + ".lokr_w2", std::move(bad));
  EXPECT_THAT(refusal(), AllOf(HasSubstr("lokr_w2"), HasSubstr("holds nan at element 3")));
}

TEST_F(LoraTest, OtherFamiliesAreRefusedByName) {
  const std::string name = "lora_unet_blocks_0_self_attn_q";
  const auto refused = [&](const std::string& end) {
    with_pair(name + ".lora_down.weight", name + ".lora_up.weight", 8, 8);
    return with(name + end, numbers({2, 2}, 1)).refusal();
  };
  EXPECT_THAT(refused(".lora_mid.weight"), AllOf(HasSubstr("is of LoCon with lora_mid, which is not supported"),
                                                 HasSubstr(name + ".lora_mid.weight"), HasSubstr("LoHa and LoKr")));
  EXPECT_THAT(refused(".hada_t1"), HasSubstr("LoHa with Tucker cores"));
  EXPECT_THAT(refused(".lokr_t2"), HasSubstr("LoKr with a Tucker core"));
  EXPECT_THAT(refused(".oft_blocks"), HasSubstr("is of OFT"));
}

TEST_F(LoraTest, StrengthZeroAddsNothing) {
  with_pair("transformer.blocks.0.attn1.to_q.lora_A.weight", "transformer.blocks.0.attn1.to_q.lora_B.weight", 8, 8);
  const Lora lora = open(0);
  EXPECT_EQ(lora.tensors, 1);
  EXPECT_TRUE(lora.deltas.empty());
}

// A LoRA of text to video on image to video: what it does not have stays as it is.
TEST_F(LoraTest, MissingImageKeysAreNoChange) {
  wan::TransformerConfig config = small();
  config.image_dim = 6;
  config.added_kv_proj_dim = 8;
  const std::string name = "diffusion_model.blocks.0.cross_attn.k";
  const Lora lora = with_pair(name + ".lora_A.weight", name + ".lora_B.weight", 8, 8).open(1, config);
  EXPECT_THAT(lora.warnings, IsEmpty());
  EXPECT_EQ(lora.deltas.size(), 1u);
}

TEST_F(LoraTest, KeysWithoutATensorAreNamed) {
  for (const char* layer : {"0", "1"}) {
    const std::string block = std::string("diffusion_model.blocks.") + layer;
    with_pair(block + ".self_attn.q.lora_A.weight", block + ".self_attn.q.lora_B.weight", 8, 8);
    with_pair(block + ".cross_attn.q_img.lora_A.weight", block + ".cross_attn.q_img.lora_B.weight", 8, 8);
    with(block + ".self_attn.q.dora_scale", numbers({8, 1}, 1));
  }
  with("diffusion_model.blocks.7.ffn.0.alpha", 1).with("diffusion_model.blocks.0.ffn.0.alpha", 1);
  const Lora lora = open();
  EXPECT_EQ(lora.tensors, 2);
  EXPECT_THAT(lora.warnings,
              ElementsAre(AllOf(HasSubstr("DoRA"), HasSubstr("2 of 12 keys"),
                                HasSubstr("'diffusion_model.blocks.*.self_attn.q.dora_scale' (2 keys)")),
                          AllOf(HasSubstr("6 of 12 keys match no tensor"),
                                HasSubstr("'diffusion_model.blocks.*.cross_attn.q_img.lora_A.weight' (2 keys)"),
                                HasSubstr("'diffusion_model.blocks.*.cross_attn.q_img.lora_B.weight' (2 keys)"),
                                // Alone in having no tensor, or nothing to scale.
                                HasSubstr("'diffusion_model.blocks.*.ffn.0.alpha' (2 keys)"))));
}

TEST_F(LoraTest, OneOfImageToVideoIsRefusedByTextToVideo) {
  const auto open_with = [&](const wan::TransformerConfig& config) {
    const std::string block = "diffusion_model.blocks.0.";
    with_pair(block + "self_attn.q.lora_A.weight", block + "self_attn.q.lora_B.weight", 8, 8);
    with_pair(block + "cross_attn.k_img.lora_A.weight", block + "cross_attn.k_img.lora_B.weight", 8, 8);
    return open(1, config);
  };
  wan::TransformerConfig config = small();
  config.in_channels = config.out_channels;
  // Text and image to video, whose picture is a part of the latents, and VACE, whose pictures are of the control
  // stream.
  wan::TransformerConfig in_latents = config, control = config;
  in_latents.in_channels = in_latents.out_channels = 48;
  control.vace_layers = {0};
  for (const wan::TransformerConfig& model : {config, in_latents, control}) {
    EXPECT_THAT(error_of([&] { open_with(model); }),
                AllOf(HasSubstr("attends to a picture"), HasSubstr("which this one does not"),
                      HasSubstr("cross_attn.k_img.lora_A.weight"), testing::Not(HasSubstr("takes no picture"))));
  }
  // A model that takes pictures as channels leaves it out.
  config.in_channels += 20;
  EXPECT_THAT(open_with(config).warnings, ElementsAre(HasSubstr("k_img")));
}

TEST_F(LoraTest, AlphaMayBeAnInteger) {
  const std::string name = "diffusion_model.blocks.0.self_attn.q";
  with_pair(name + ".lora_down.weight", name + ".lora_up.weight", 8, 8);
  Tensor alpha(DType::kI64, {});
  *alpha.data<int64_t>() = 3;
  const Lora lora = with(name + ".alpha", std::move(alpha)).open();
  EXPECT_EQ(lora.deltas.begin()->second.front().scale, 1.5);  // of rank 2
}

// A tensor of a type that the library's own writer does not have.
struct RawTensor {
  std::string name, dtype, shape, bytes;
};
void write_raw(const std::filesystem::path& path, const std::vector<RawTensor>& tensors) {
  std::string header, data;
  for (const RawTensor& tensor : tensors) {
    header +=
        fmt::format(R"({}"{}": {{"dtype": "{}", "shape": {}, "data_offsets": [{}, {}]}})", header.empty() ? "{" : ", ",
                    tensor.name, tensor.dtype, tensor.shape, data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  header += "}";
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << data;
}
std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST_F(LoraTest, IntegersOfEveryTypeAreReadAndNeverTakenForCodes) {
  const std::string name = "diffusion_model.blocks.0.self_attn.q", ones = bytes_of(std::vector<float>(16, 1));
  const auto path = folder_ / "integers.safetensors";
  for (const auto& [dtype, size] : {std::pair("I8", 1), std::pair("I16", 2), std::pair("I32", 4), std::pair("I64", 8),
                                    std::pair("U8", 1), std::pair("U16", 2), std::pair("U32", 4)}) {
    std::string three(static_cast<size_t>(size), '\0');
    three[0] = 3;
    for (const char* shape : {"[]", "[1]"}) {
      write_raw(path, {{name + ".lora_down.weight", "F32", "[2, 8]", ones},
                       {name + ".lora_up.weight", "F32", "[8, 2]", ones},
                       {name + ".alpha", dtype, shape, three},
                       {name + ".rank", dtype, shape, three},
                       {"network_dim", dtype, shape, three}});
      const Lora lora = open_lora(path, 1, wan::transformer_tensors(small()));
      EXPECT_EQ(lora.deltas.begin()->second.front().scale, 1.5) << dtype << shape;
      EXPECT_THAT(lora.warnings, ElementsAre(HasSubstr("2 of 5 keys"))) << dtype << shape;
    }
  }
}

TEST_F(LoraTest, MatricesMayBeCodesWithScalesOrWithout) {
  const std::string name = "diffusion_model.blocks.0.self_attn.q";
  const std::string down = name + ".lora_down", up = name + ".lora_up", ones(16, '\x38'), one = bytes_of({0.5F});
  const std::string json = R"({"format": "float8_e4m3fn"})";
  const auto path = folder_ / "codes.safetensors";
  const auto holds = [&](const std::vector<RawTensor>& tensors, double each) {
    write_raw(path, tensors);
    const Lora lora = open_lora(path, 1, wan::transformer_tensors(small()));
    EXPECT_THAT(lora.warnings, IsEmpty());
    expect_added(lora, "blocks.0.attn1.to_q.weight", [&](int64_t) { return each; });
  };
  holds({{down + ".weight", "F8_E4M3", "[2, 8]", ones}, {up + ".weight", "F8_E4M3", "[8, 2]", ones}}, 2);
  holds({{down + ".weight", "F8_E4M3", "[2, 8]", ones},
         {down + ".weight_scale", "F32", "[]", one},
         {up + ".weight", "F8_E4M3", "[8, 2]", ones},
         {up + ".scale_weight", "F32", "[1]", one},
         {"scaled_fp8", "F8_E4M3", "[0]", ""}},
        0.5);
  // Bytes whose type stands in a description.
  holds({{down + ".weight", "U8", "[2, 8]", ones},
         {down + ".weight_scale", "F32", "[]", one},
         {down + ".comfy_quant", "U8", fmt::format("[{}]", json.size()), json},
         {up + ".weight", "F8_E4M3", "[8, 2]", ones}},
        1);
  holds({{down + ".weight", "I8", "[2, 8]", std::string(16, '\x02')},
         {down + ".weight_scale", "F32", "[2, 1]", bytes_of({0.5F, 1})},
         {up + ".weight", "F8_E4M3", "[8, 2]", ones}},
        3);
}

TEST_F(LoraTest, OtherModelsAreRefused) {
  with_pair("transformer.single_blocks.0.linear1.lora_A.weight", "transformer.single_blocks.0.linear1.lora_B.weight", 8,
            8);
  EXPECT_THAT(refusal(), AllOf(HasSubstr("lora.safetensors: is a LoRA of another model"), HasSubstr("2 keys"),
                               HasSubstr("'transformer.single_blocks.0.linear1.lora_A.weight'"),
                               HasSubstr("diffusion_model.blocks.0.self_attn.q.lora_down.weight")));
  // Magnitudes alone are no change either, nor is alpha.
  EXPECT_THAT(with("diffusion_model.blocks.0.self_attn.q.dora_scale", 1).refusal(), HasSubstr("another model"));
  EXPECT_THAT(with("diffusion_model.blocks.0.self_attn.q.alpha", 1).refusal(), HasSubstr("another model"));
  EXPECT_THAT(refusal(), HasSubstr("holds no tensors"));
}

TEST_F(LoraTest, WhatDoesNotFitIsRefusedByName) {
  const std::string name = "diffusion_model.blocks.0.self_attn.q";
  const auto refused = [&](const Shape& down, const Shape& up) {
    return with(name + ".lora_A.weight", numbers(down, 1)).with(name + ".lora_B.weight", numbers(up, 2)).refusal();
  };
  EXPECT_THAT(refused({2, 8}, {8, 3}), AllOf(HasSubstr("differ in rank"), HasSubstr("lora_A.weight' [2, 8]"),
                                             HasSubstr("lora_B.weight' [8, 3]")));
  EXPECT_THAT(refused({2, 9}, {8, 2}), AllOf(HasSubstr("do not fit 'blocks.0.attn1.to_q.weight' [8, 8]")));
  EXPECT_THAT(refused({2, 8}, {9, 2}), HasSubstr("another size"));
  EXPECT_THAT(refused({16}, {8, 2}), HasSubstr("rank"));
  EXPECT_THAT(refused({0, 8}, {8, 0}), HasSubstr("have no rank"));
  EXPECT_THAT(with(name + ".lora_A.weight", numbers({2, 8}, 1)).refusal(), HasSubstr("without its other half"));
  EXPECT_THAT(with(name + ".lora_B.weight", numbers({8, 2}, 1)).refusal(), HasSubstr("without its other half"));
  EXPECT_THAT(with(name + ".lora_B.bias", numbers({8}, 1)).refusal(), HasSubstr("is without the lora_A"));
  EXPECT_THAT(with(name + ".diff", numbers({8, 9}, 1)).refusal(), HasSubstr("[8, 9] does not fit"));
  EXPECT_THAT(with(name + ".diff", numbers({4, 16}, 1)).refusal(), HasSubstr("[4, 16] does not fit"));
  with_pair(name + ".lora_A.weight", name + ".lora_B.weight", 8, 8);
  EXPECT_THAT(with(name + ".alpha", numbers({2}, 1)).refusal(), HasSubstr("single number"));
  with_pair(name + ".lora_A.weight", name + ".lora_B.weight", 8, 8);
  EXPECT_THAT(with("transformer.blocks.0.attn1.to_q.lora_A.weight", numbers({2, 8}, 1)).refusal(),
              HasSubstr("are the same change of 'blocks.0.attn1.to_q'"));
  EXPECT_THAT(with(name + ".diff", Tensor(DType::kI64, {8, 8})).refusal(), HasSubstr("stored as I64"));
}

TEST_F(LoraTest, ValuesThatAreNotFiniteAreRefused) {
  const std::string name = "diffusion_model.blocks.0.self_attn.q";
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const char* part : {".lora_A.weight", ".lora_B.weight", ".diff", ".alpha"}) {
      with_pair(name + ".lora_A.weight", name + ".lora_B.weight", 8, 8).with(name + ".diff", numbers({8, 8}, 3));
      with(name + ".alpha", 1);
      Tensor& tensor = tensors_.at(name + part);
      tensor.data<float>()[tensor.size() - 1] = bad;
      EXPECT_THAT(refusal(), AllOf(HasSubstr(name + part), HasSubstr(fmt::format("holds {} at element", bad))));
    }
  }
}

TEST_F(LoraTest, RecordedFilesMatchTheirModel) {
  const std::filesystem::path golden = kGoldenFolder;
  const auto config = wan::TransformerConfig::load(golden / "pipelines/wan21_t2v/transformer/config.json");
  const io::TensorTable table = wan::transformer_tensors(config);
  const Lora peft = open_lora(golden / "loras/peft.safetensors", 0.8, table);
  EXPECT_THAT(peft.warnings, IsEmpty());
  EXPECT_EQ(peft.tensors, 20);
  EXPECT_THAT((std::vector{peft.least_rank, peft.largest_rank}), ElementsAre(2, 4));
  EXPECT_DOUBLE_EQ(peft.deltas.at("blocks.0.ffn.net.0.proj.weight").at(0).scale, 0.8 * 6 / 2);
  EXPECT_DOUBLE_EQ(peft.deltas.at("blocks.1.attn2.to_k.weight").at(0).scale, 0.8 * 6 / 4);
  const Lora original = open_lora(golden / "loras/original.safetensors", 0.8, table);
  EXPECT_THAT(original.warnings, IsEmpty());
  EXPECT_EQ(original.tensors, 14);
}

TEST_F(LoraTest, RefusesAFactorThatFloat32DoesNotHold) {
  const std::string base = "diffusion_model.blocks.0.self_attn.q.";
  const auto with_alpha = [&](float alpha) -> LoraTest& {
    return with_pair(base + "lora_down.weight", base + "lora_up.weight", 8, 8).with(base + "alpha", alpha);
  };
  EXPECT_EQ(with_alpha(2e38f).open(3).tensors, 1);  // 3e38, for alpha is divided by a rank of 2
  EXPECT_THAT(error_of([&] { with_alpha(2e38f).open(-1000); }),
              AllOf(HasSubstr("lora.safetensors"), HasSubstr("blocks.0.attn1.to_q.weight"), HasSubstr("-1000")));
}

}  // namespace
}  // namespace zoetrope::lora
