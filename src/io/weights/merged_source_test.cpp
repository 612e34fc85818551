#include "io/weights/merged_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/project_folders.h"
#include "io/weights/test_files.h"
#include "io/weights/weight_loader.h"
#include "tensor/half.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

float value(int64_t i, int seed) { return std::sin(static_cast<float>(i * 7 + seed)); }

Tensor made(DType dtype, const Shape& shape, int seed) {
  Tensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (dtype == DType::kF32) tensor.data<float>()[i] = value(i, seed);
    if (dtype == DType::kBF16) tensor.data<BFloat16>()[i] = to_bfloat16(value(i, seed));
    if (dtype == DType::kF16) tensor.data<Float16>()[i] = from_float<Float16>(value(i, seed));
  }
  return tensor;
}

double stored(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::kBF16:
      return to_float(tensor.data<BFloat16>()[i]);
    case DType::kF16:
      return to_float(tensor.data<Float16>()[i]);
    default:
      return tensor.data<float>()[i];
  }
}

class MergedSourceTest : public testing::Test {
 protected:
  std::shared_ptr<const WeightSource> file(const std::string& name,
                                           const std::vector<std::pair<std::string, TensorView>>& tensors) {
    SafetensorsWriter writer;
    for (const auto& [key, tensor] : tensors) writer.add(key, tensor);
    writer.write(folder_ / name);
    return checkpoint_source(Checkpoint::open_file(folder_ / name));
  }
  TestFolder folder_;
};

// Against sums in double: |error| ≤ (rank + 2) roundings of the terms' magnitudes.
class Products : public MergedSourceTest, public testing::WithParamInterface<std::tuple<DType, DType, int>> {};

TEST_P(Products, EqualTheFormula) {
  const auto [base_dtype, delta_dtype, rank] = GetParam();
  for (const int64_t rows : {1, 3, 4, 5, 9}) {
    for (const int64_t columns : {1, 15, 16, 17, 40}) {
      const Tensor w = made(base_dtype, {rows, columns}, 1), up = made(delta_dtype, {rows, rank}, 2);
      const Tensor down = made(delta_dtype, {rank, columns}, 3), whole = made(delta_dtype, {rows, columns}, 4);
      const auto base = file("base.safetensors", {{"w", w}, {"other", w}});
      const auto from = file("lora.safetensors", {{"up", up}, {"down", down}, {"whole", whole}});
      const auto merged = merged_source(base, {{"w", {{from, "up", "down", "", 0.75}, {from, "", "", "whole", -2}}}});
      EXPECT_EQ(merged->info("w").dtype, DType::kF32);
      EXPECT_EQ(merged->info("w").bytes, static_cast<uint64_t>(rows * columns) * 4);
      EXPECT_FALSE(merged->mapped("w"));
      EXPECT_EQ(merged->info("other").dtype, base_dtype);
      EXPECT_TRUE(merged->mapped("other"));
      Tensor sum(DType::kF32, {rows, columns}), rounded(DType::kBF16, {rows, columns});
      merged->read("w", sum);
      merged->read("w", rounded);
      for (int64_t i = 0; i < w.size(); ++i) {
        double product = 0, size = std::abs(stored(w, i)) + 2 * std::abs(stored(whole, i));
        for (int64_t r = 0; r < rank; ++r) {
          const double term = stored(up, i / columns * rank + r) * stored(down, r * columns + i % columns);
          product += term;
          size += 0.75 * std::abs(term);
        }
        const double exact = stored(w, i) + 0.75 * product - 2 * stored(whole, i);
        EXPECT_NEAR(sum.data<float>()[i], exact, size * (rank + 4) * 0x1p-24) << rows << " x " << columns;
        EXPECT_EQ(to_float(rounded.data<BFloat16>()[i]), to_float(to_bfloat16(sum.data<float>()[i])));
      }
      Tensor part(DType::kF32, {1});
      merged->read_range("w", {w.size() - 1, w.size()}, part);
      EXPECT_EQ(part.data<float>()[0], sum.data<float>()[w.size() - 1]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypesAndRanks, Products,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                                          testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                                          testing::Values(1, 2, 33)));

// A convolution's change is the product laid out as its kernel.
TEST_F(MergedSourceTest, KernelsAreFilledRowByRow) {
  const Tensor zeros(DType::kF32, {2, 3, 1, 2, 2});
  const auto base = file("base.safetensors", {{"w", zeros}});
  const Tensor up = made(DType::kF32, {2, 1, 1, 1, 1}, 1), down = made(DType::kF32, {1, 3, 1, 2, 2}, 2);
  const auto from = file("lora.safetensors", {{"up", up}, {"down", down}});
  const auto merged = merged_source(base, {{"w", {{from, "up", "down", "", 1}}}});
  Tensor sum(DType::kF32, {2, 3, 1, 2, 2});
  merged->read("w", sum);
  for (int64_t i = 0; i < 24; ++i) {
    EXPECT_EQ(sum.data<float>()[i], up.data<float>()[i / 12] * down.data<float>()[i % 12]);
  }
}

// W + scale · (A·B) ⊙ (C·D), rows round the blocks of 64.
TEST_F(MergedSourceTest, ProductsOfProductsElementByElement) {
  for (const int64_t rows : {1, 5, 64, 67}) {
    for (const int64_t columns : {1, 16, 19}) {
      const Tensor w = made(DType::kF32, {rows, columns}, 1), a = made(DType::kF16, {rows, 3}, 2);
      const Tensor b = made(DType::kF32, {3, columns}, 3), c = made(DType::kBF16, {rows, 2}, 4);
      const Tensor d = made(DType::kF32, {2, columns}, 5);
      const auto from = file("lora.safetensors", {{"a", a}, {"b", b}, {"c", c}, {"d", d}});
      const WeightDelta delta{from, "a", "b", "", 0.75, DeltaJoin::kHadamard, {"c", "d", ""}};
      EXPECT_EQ(merge_scratch_elements(rows, columns, delta), merge_scratch_elements(rows, columns, 3) +
                                                                  merge_scratch_elements(rows, columns, 2) +
                                                                  2 * std::min<int64_t>(rows, 64) * columns);
      const auto merged = merged_source(file("base.safetensors", {{"w", w}}), {{"w", {delta}}});
      Tensor sum(DType::kF32, {rows, columns});
      merged->read("w", sum);
      for (int64_t i = 0; i < w.size(); ++i) {
        const int64_t row = i / columns, column = i % columns;
        const auto product = [&](const Tensor& up, const Tensor& down, int64_t rank) {
          double value = 0;
          for (int64_t r = 0; r < rank; ++r) value += stored(up, row * rank + r) * stored(down, r * columns + column);
          return value;
        };
        // Of numbers below 1: six, and a dozen roundings.
        EXPECT_NEAR(sum.data<float>()[i], stored(w, i) + 0.75 * product(a, b, 3) * product(c, d, 2), 12 * 6 * 0x1p-24);
      }
    }
  }
}

// W + scale · A ⊗ B, each whole or a product: every element of the first times all of the second.
TEST_F(MergedSourceTest, KroneckerProducts) {
  constexpr int64_t kRows[] = {3, 5}, kColumns[] = {2, 7}, kRank = 2;
  constexpr int64_t kAll = kRows[0] * kRows[1] * kColumns[0] * kColumns[1];
  const Tensor w = made(DType::kBF16, {kRows[0] * kRows[1], kColumns[0] * kColumns[1]}, 1);
  const Tensor a = made(DType::kF32, {kRows[0], kColumns[0]}, 2), b = made(DType::kF32, {kRows[1], kColumns[1]}, 3);
  const Tensor a_up = made(DType::kF32, {kRows[0], kRank}, 4), a_down = made(DType::kF32, {kRank, kColumns[0]}, 5);
  const Tensor b_up = made(DType::kF32, {kRows[1], kRank}, 6), b_down = made(DType::kF32, {kRank, kColumns[1]}, 7);
  const auto base = file("base.safetensors", {{"w", w}});
  const auto from = file("lora.safetensors",
                         {{"a", a}, {"b", b}, {"a_up", a_up}, {"a_down", a_down}, {"b_up", b_up}, {"b_down", b_down}});
  std::vector<std::string> identities;
  for (const bool first_whole : {true, false}) {
    for (const bool second_whole : {true, false}) {
      const DeltaMatrix first = first_whole ? DeltaMatrix{"", "", "a"} : DeltaMatrix{"a_up", "a_down", ""};
      const DeltaMatrix second = second_whole ? DeltaMatrix{"", "", "b"} : DeltaMatrix{"b_up", "b_down", ""};
      const WeightDelta delta{from, first.up, first.down, first.whole, -0.5, DeltaJoin::kKronecker, second};
      const auto merged = merged_source(base, {{"w", {delta}}});
      identities.push_back(merged->identity());
      Tensor sum(DType::kF32, w.shape());
      merged->read("w", sum);
      merged->release("w");
      const auto element = [&](bool whole, const Tensor& all, const Tensor& up, const Tensor& down, int64_t row,
                               int64_t column, int64_t columns) {
        if (whole) return stored(all, row * columns + column);
        double value = 0;
        for (int64_t r = 0; r < kRank; ++r) value += stored(up, row * kRank + r) * stored(down, r * columns + column);
        return value;
      };
      for (int64_t i = 0; i < kAll; ++i) {
        const int64_t row = i / w.extent(1), column = i % w.extent(1);
        const double large = element(first_whole, a, a_up, a_down, row / kRows[1], column / kColumns[1], kColumns[0]);
        const double small = element(second_whole, b, b_up, b_down, row % kRows[1], column % kColumns[1], kColumns[1]);
        EXPECT_NEAR(sum.data<float>()[i], stored(w, i) - 0.5 * large * small, 8 * 4 * 0x1p-24) << i;
      }
      const int64_t products = (first_whole ? 0 : merge_scratch_elements(kRows[0], kColumns[0], kRank)) +
                               (second_whole ? 0 : merge_scratch_elements(kRows[1], kColumns[1], kRank));
      EXPECT_EQ(merge_scratch_elements(w.extent(0), w.extent(1), delta), a.size() + b.size() + products);
    }
  }
  for (size_t i = 0; i < identities.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(identities[i], identities[j]);
}

// What a model is given: the sum in float32, rounded once, whatever the number of threads.
TEST_F(MergedSourceTest, FormsAreMadeOfTheSum) {
  const Tensor w = made(DType::kBF16, {8, 24}, 1);
  const auto base = file("base.safetensors", {{"w", w}, {"bias", made(DType::kBF16, {8}, 9)}});
  const auto from = file("lora.safetensors", {{"up", made(DType::kBF16, {8, 4}, 2)},
                                              {"down", made(DType::kBF16, {4, 24}, 3)},
                                              {"b", made(DType::kBF16, {8}, 4)}});
  const WeightDeltas deltas{{"w", {{from, "up", "down", "", 0.01}}}, {"bias", {{from, "", "", "b", 0.01}}}};
  Tensor sum(DType::kF32, {8, 24}), bias(DType::kF32, {8});
  merged_source(base, deltas)->read("w", sum);
  merged_source(base, deltas)->read("bias", bias);
  for (const int threads : {1, 4}) {
    const auto weights = std::make_shared<Weights>(merged_source(base, deltas));
    WeightLoader loader(weights);
    const std::byte* placed = nullptr;
    PackedWeight weight{
        {"w"}, {{8, 24}}, "bf16", 8 * 24 * 2, 0, [](std::span<const TensorView> in, int64_t, std::byte* out) {
          ASSERT_EQ(in[0].dtype(), DType::kF32);
          std::transform(in[0].data<float>(), in[0].data<float>() + in[0].size(), reinterpret_cast<BFloat16*>(out),
                         to_bfloat16);
        }};
    loader.add(std::move(weight), [&](const std::byte* at) { placed = at; });
    loader.run(threads);
    const TensorView read = weights->get("bias", {8}, DType::kBF16);
    for (int64_t i = 0; i < sum.size(); ++i) {
      EXPECT_EQ(to_float(reinterpret_cast<const BFloat16*>(placed)[i]), to_float(to_bfloat16(sum.data<float>()[i])));
    }
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(to_float(read.data<BFloat16>()[i]), to_float(to_bfloat16(bias.data<float>()[i])));
    }
  }
}

// A cache on disk is used for the same files and strengths alone.
TEST_F(MergedSourceTest, IdentityTellsFilesAndStrengthsApart) {
  const auto base = file("base.safetensors", {{"w", made(DType::kF32, {2, 2}, 1)}});
  const auto one = file("one.safetensors", {{"d", made(DType::kF32, {2, 2}, 2)}});
  const auto two = file("two.safetensors", {{"d", made(DType::kF32, {2, 2}, 2)}});
  const auto identity = [&](const std::shared_ptr<const WeightSource>& from, double scale) {
    return merged_source(base, {{"w", {{from, "", "", "d", scale}}}})->identity();
  };
  EXPECT_EQ(identity(one, 0.5), identity(one, 0.5));
  EXPECT_NE(identity(one, 0.5), identity(one, 0.6));
  EXPECT_NE(identity(one, 0.5), identity(two, 0.5));
  EXPECT_NE(identity(one, 0.5), base->identity());
}

// A sum is not what the codes of int8 say any more.
TEST(MergedSource, ChangedTensorsHaveNoInt8Codes) {
  const auto base =
      checkpoint_source(Checkpoint::open_file(std::string(kGoldenFolder) + "/weights/dit/int8_convrot.safetensors"));
  const std::string changed = "blocks.0.ffn.0.weight", same = "blocks.1.ffn.0.weight";
  WeightDelta delta;
  delta.from = base;
  delta.first.whole = changed;
  const auto merged = merged_source(base, {{changed, {delta}}});
  EXPECT_TRUE(base->int8_codes(changed) && merged->int8_codes(same));
  EXPECT_FALSE(merged->int8_codes(changed));
}

TEST_F(MergedSourceTest, FilesThatChangeAreRefused) {
  const auto base = file("base.safetensors", {{"w", made(DType::kF32, {2, 2}, 1)}});
  const auto from = file("lora.safetensors", {{"d", made(DType::kF32, {2, 2}, 2)}});
  const auto merged = merged_source(base, {{"w", {{from, "", "", "d", 1}}}});
  merged->require_unchanged();
  folder_.write("lora.safetensors", "something else");
  EXPECT_THAT(error_of([&] { merged->require_unchanged(); }), testing::HasSubstr("lora.safetensors"));
}

// However a change is written: the first element that leaves the finite numbers, the file whose change did it, and
// never a LoRA for what the base holds already.
TEST_F(MergedSourceTest, NamesWhoMadeASumInfinite) {
  constexpr float kLarge = 1e30f;
  const auto filled = [](const Shape& shape, float each) {
    Tensor tensor(DType::kF32, shape);
    std::fill_n(tensor.data<float>(), tensor.size(), each);
    return tensor;
  };
  Tensor damaged = filled({6, 4}, 1);
  damaged.data<float>()[7] = std::nanf("");
  const auto base = file("base.safetensors", {{"w", filled({6, 4}, 1)}, {"damaged", damaged}});
  const auto mild = file("mild.safetensors", {{"whole", filled({6, 4}, 0.5f)}});
  const auto from = file("large.safetensors", {{"up", filled({6, 1}, kLarge)},
                                               {"down", filled({1, 4}, kLarge)},
                                               {"whole", filled({6, 4}, 3e38f)},
                                               {"w1", filled({3, 2}, kLarge)},
                                               {"w2", filled({2, 2}, kLarge)}});
  const WeightDelta sound{mild, {"", "", "whole"}, 1};
  const WeightDelta loud[] = {{from, {"up", "down", ""}, 1},
                              {from, {"", "", "whole"}, 2},
                              {from, {"up", "down", ""}, 1, DeltaJoin::kHadamard, {"up", "down", ""}},
                              {from, {"", "", "w1"}, 1, DeltaJoin::kKronecker, {"", "", "w2"}}};
  Tensor sum(DType::kF32, {6, 4});
  for (const WeightDelta& delta : loud) {
    const WeightDeltas deltas{{"w", {sound, delta, sound}}};
    EXPECT_THAT(error_of([&] { merged_source(base, deltas)->read("w", sum); }),
                AllOf(HasSubstr("large.safetensors: added to 'w'"), HasSubstr("element 0"), HasSubstr("inf"),
                      HasSubstr("check_finite=false")));
    merged_source(base, deltas, false)->read("w", sum);
    EXPECT_FALSE(std::isfinite(sum.data<float>()[0]));
  }
  EXPECT_THAT(error_of([&] {
                merged_source(base, {{"damaged", {sound}}})->read("damaged", sum);
              }),
              AllOf(HasSubstr("base.safetensors: tensor 'damaged' holds nan at element 7")));
}

}  // namespace
}  // namespace zoetrope::io
