#include "io/weights/weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>

#include "base/project_folders.h"
#include "io/weights/formula_testing.h"
#include "io/weights/test_files.h"
#include "tensor/half.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Values whose bfloat16 and float16 roundings are ties, overflows and denormals.
const std::vector<double> kValues = {0.0,    -0.0,    1.0,    1.00390625, 1.01171875, -1.00390625, 65504.0,
                                     3.4e38, 1.0e-40, 5.0e-8, 1.0e39,     -2.5,       INFINITY,    NAN};

template <typename T, typename Make>
Tensor filled(DType dtype, Make&& make) {
  Tensor tensor(dtype, {static_cast<int64_t>(kValues.size())});
  for (size_t i = 0; i < kValues.size(); ++i) tensor.data<T>()[i] = make(kValues[i]);
  return tensor;
}

class WeightsTest : public testing::Test {
 protected:
  WeightsTest() {
    const Tensor f64 = filled<double>(DType::kF64, [](double v) { return v; });
    const Tensor f32 = filled<float>(DType::kF32, [](double v) { return static_cast<float>(v); });
    const Tensor f16 =
        filled<Float16>(DType::kF16, [](double v) { return from_float<Float16>(static_cast<float>(v)); });
    const Tensor bf16 = filled<BFloat16>(DType::kBF16, [](double v) { return to_bfloat16(static_cast<float>(v)); });
    const Tensor i64(DType::kI64, {2});
    Tensor q(DType::kF32, {2, 3}), k(DType::kF32, {1, 3});
    for (int i = 0; i < 6; ++i) q.data<float>()[i] = static_cast<float>(i);
    for (int i = 0; i < 3; ++i) k.data<float>()[i] = static_cast<float>(10 + i);
    SafetensorsWriter writer;
    writer.add("f64", f64);
    writer.add("f32", f32);
    writer.add("f16", f16);
    writer.add("bf16", bf16);
    writer.add("i64", i64);
    writer.add("q", q);
    writer.add("k", k);
    writer.write(folder_ / "model.safetensors");
    weights_.emplace(checkpoint_source(Checkpoint::open(folder_.path(), "model")));
  }

  TestFolder folder_;
  std::optional<Weights> weights_;
  const Shape shape_{static_cast<int64_t>(kValues.size())};
};

TEST_F(WeightsTest, StoredTypeIsUsedAsItIs) {
  const auto checkpoint = Checkpoint::open(folder_.path(), "model");
  const TensorView view = weights_->get("f32", shape_, DType::kF32);
  EXPECT_EQ(std::memcmp(view.raw(), checkpoint.view("f32").raw(), view.bytes()), 0);
  EXPECT_EQ(weights_->get("f32", shape_, DType::kF32).raw(), view.raw());
  EXPECT_EQ(weights_->get("i64", {2}, DType::kI64).dtype(), DType::kI64);
}

// The system may map two megabytes of a file where one value is touched.
TEST(Weights, OfTheFileOnlyLargeTensorsUsedInPlaceStayResident) {
  constexpr int kLayers = 6;
  const TestFolder folder;
  const Tensor bias = counting({1000}), matrix = counting({800, 1000});
  SafetensorsWriter writer;
  for (int i = 0; i < kLayers; ++i) {
    writer.add(fmt::format("{}.bias", i), bias);
    writer.add(fmt::format("{}.matrix", i), matrix);
  }
  const auto path = folder / "model.safetensors";
  writer.write(path);
  const Weights weights(checkpoint_source(Checkpoint::open_file(path)));
  for (int i = 0; i < kLayers; ++i) {
    const TensorView view = weights.get(fmt::format("{}.bias", i), {1000}, DType::kF32);
    EXPECT_EQ(std::memcmp(view.raw(), bias.view().raw(), view.bytes()), 0);
  }
  EXPECT_EQ(resident_kilobytes(path), 0);
  EXPECT_EQ(weights.copied_bytes(), kLayers * bias.view().bytes());
  const TensorView whole = weights.get("2.matrix", {800, 1000}, DType::kF32);
  EXPECT_EQ(whole.data<float>()[799999], 800000);
  EXPECT_GE(resident_kilobytes(path), 4);
  EXPECT_EQ(weights.copied_bytes(), kLayers * bias.view().bytes());
}

TEST_F(WeightsTest, EveryFloatConvertsAndIsKept) {
  for (const std::string name : {"f64", "f32", "f16", "bf16"}) {
    const TensorView wide = weights_->get(name, shape_, DType::kF32);
    const TensorView narrow = weights_->get(name, shape_, DType::kBF16);
    EXPECT_EQ(weights_->get(name, shape_, DType::kF32).raw(), wide.raw());
    EXPECT_EQ(weights_->get(name, shape_, DType::kBF16).raw(), narrow.raw());
    for (size_t i = 0; i < kValues.size(); ++i) {
      float expected = static_cast<float>(kValues[i]);
      if (name == "f16") expected = to_float(from_float<Float16>(expected));
      if (name == "bf16") expected = to_float(to_bfloat16(expected));
      const float read = wide.data<float>()[i];
      EXPECT_EQ(std::isnan(read), std::isnan(expected)) << name << i;
      if (!std::isnan(expected)) {
        EXPECT_EQ(std::bit_cast<uint32_t>(read), std::bit_cast<uint32_t>(expected)) << name << i;
      }
      EXPECT_EQ(narrow.data<BFloat16>()[i].bits, to_bfloat16(expected).bits) << name << " " << i;
    }
  }
  EXPECT_EQ(weights_->copied_bytes(), kValues.size() * (4 * 4 + 4 * 2));
  // The ties: 1 + 1/256 goes down to even, 1 + 3/256 up to even.
  const auto* ties = weights_->get("f32", shape_, DType::kBF16).data<BFloat16>();
  EXPECT_EQ(to_float(ties[3]), 1.0f);
  EXPECT_EQ(to_float(ties[4]), 1.015625f);
}

TEST_F(WeightsTest, FusedJoinsAlongRows) {
  const TensorView fused = weights_->get_fused({"q", "k"}, {{2, 3}, {1, 3}}, DType::kF32);
  EXPECT_EQ(fused.shape(), (Shape{3, 3}));
  const std::vector<float> expected = {0, 1, 2, 3, 4, 5, 10, 11, 12};
  EXPECT_EQ(std::memcmp(fused.raw(), expected.data(), fused.bytes()), 0);
  EXPECT_EQ(weights_->get_fused({"q", "k"}, {{2, 3}, {1, 3}}, DType::kF32).raw(), fused.raw());
  EXPECT_EQ(weights_->copied_bytes(), 36u);
  const TensorView other = weights_->get_fused({"k", "q"}, {{1, 3}, {2, 3}}, DType::kBF16);
  EXPECT_EQ(to_float(other.data<BFloat16>()[0]), 10.0f);
  EXPECT_EQ(to_float(other.data<BFloat16>()[8]), 5.0f);
}

TEST_F(WeightsTest, ErrorsNameFileTensorAndShapes) {
  EXPECT_THAT(error_of([&] { weights_->get("x", {2}, DType::kF32); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("'x' is missing")));
  EXPECT_THAT(error_of([&] {
                weights_->get("q", {3, 2}, DType::kF32);
              }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("'q'"), HasSubstr("[2, 3]"), HasSubstr("[3, 2]")));
  EXPECT_THAT(error_of([&] { weights_->get_fused({"q", "k"}, {{2, 3}, {2, 3}}, DType::kF32); }), HasSubstr("[1, 3]"));
  EXPECT_THAT(error_of([&] { weights_->get("i64", {2}, DType::kF32); }), HasSubstr("stored as I64"));
  EXPECT_THAT(error_of([&] { weights_->get("i64", {2}, DType::kBF16); }), HasSubstr("stored as I64"));
  EXPECT_THAT(error_of([&] { weights_->get("f32", shape_, DType::kI32); }), HasSubstr("cannot be read as I32"));
}

TEST_F(WeightsTest, RanksShareOneCopy) {
  std::vector<void*> seen(8);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < seen.size(); ++rank) {
    threads.emplace_back([&, rank] {
      weights_->get(rank % 2 == 0 ? "f64" : "f16", shape_, DType::kF32);
      seen[rank] = weights_->get_fused({"q", "k"}, {{2, 3}, {1, 3}}, DType::kBF16).raw();
    });
  }
  for (auto& thread : threads) thread.join();
  for (void* pointer : seen) EXPECT_EQ(pointer, seen[0]);
  EXPECT_EQ(weights_->copied_bytes(), kValues.size() * 8 + 18);
}

TEST(Weights, MisalignedTensorsAreCopied) {
  const TestFolder folder;
  std::string header =
      R"({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  folder.write("m.safetensors", safetensors_bytes(header, std::string("\1\0\0\x80\x3f", 5)));
  const Weights weights(checkpoint_source(Checkpoint::open_file(folder / "m.safetensors")));
  EXPECT_FALSE(weights.info("b").aligned);
  const TensorView view = weights.get("b", {1}, DType::kF32);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.raw()) % 4, 0u);
  EXPECT_EQ(*view.data<float>(), 1.0f);
}

TEST(Weights, DtypeThatCannotBeComputedWith) {
  const TestFolder folder;
  folder.write("m.safetensors",
               safetensors_bytes(R"({"a": {"dtype": "I16", "shape": [1], "data_offsets": [0, 2]}})", "ab"));
  const Weights weights(checkpoint_source(Checkpoint::open_file(folder / "m.safetensors")));
  EXPECT_THAT(error_of([&] { weights.get("a", {1}, DType::kBF16); }), AllOf(HasSubstr("'a'"), HasSubstr("I16")));
}

// The same model stored and given by formula: the values must be equal to the bit.
TEST(ProceduralWeights, EqualTheStoredOnes) {
  const std::string root = std::string(kGoldenFolder) + "/transformer_t2v/transformer";
  const Weights stored(checkpoint_source(Checkpoint::open(root, "diffusion_pytorch_model")));
  const Weights formula(procedural_source(root + "/weights.json"));
  ASSERT_EQ(stored.names(), formula.names());
  for (const std::string& name : stored.names()) {
    const Shape shape = stored.info(name).shape;
    const TensorView a = stored.get(name, shape, DType::kF32);
    const TensorView b = formula.get(name, shape, DType::kF32);
    EXPECT_EQ(std::memcmp(a.raw(), b.raw(), a.bytes()), 0) << name;
    const TensorView narrow = formula.get(name, shape, DType::kBF16);
    EXPECT_EQ(narrow.data<BFloat16>()[0].bits, to_bfloat16(b.data<float>()[0]).bits);
  }
}

TEST(ProceduralWeights, BadFiles) {
  const TestFolder folder;
  const auto load = [&](const std::string& text) {
    return error_of([&] { procedural_source(folder.write("w.json", text)); });
  };
  EXPECT_THAT(load("{}"), HasSubstr("'seed' is missing"));
  EXPECT_THAT(load(R"({"seed": 1, "tensors": {"a": {"shape": [-1], "offset": 0, "amplitude": 1}}})"), HasSubstr("-1"));
  EXPECT_THAT(load(R"({"seed": 1, "tensors": {"a": {"shape": [1,1,1,1,1,1], "offset": 0, "amplitude": 1}}})"),
              HasSubstr("6 axes"));
  EXPECT_THAT(
      load(R"({"seed": 1, "tensors": {"a": {"shape": [4294967296, 4294967296], "offset": 0, "amplitude": 1}}})"),
      HasSubstr("impossible extent"));
  EXPECT_THAT(load(R"({"seed": 1, "tensors": {"a": {"shape": [1], "offset": 0}}})"),
              HasSubstr("'tensors.a.amplitude'"));
  const auto path = folder.write("w.json", R"({"seed": 1, "tensors": {}})");
  EXPECT_THAT(error_of([&] { Weights(procedural_source(path)).get("a", {1}, DType::kF32); }),
              HasSubstr("'a' is missing"));
}

// Two and a half parts' worth, at an odd size.
TEST(Weights, SeveralThreadsReadWhatOneReads) {
  constexpr int64_t kCount = (int64_t{5} << 19) + 3;
  const TestFolder folder;
  const Tensor f32(DType::kF32, {kCount});
  for (int64_t i = 0; i < kCount; ++i) f32.data<float>()[i] = static_cast<float>(i) * 1.37f;
  SafetensorsWriter writer;
  writer.add("w", f32);
  writer.write(folder / "model.safetensors");
  const auto formula = folder.write(
      "weights.json",
      fmt::format(R"({{"seed": 3, "tensors": {{"w": {{"shape": [{}], "offset": 0.5, "amplitude": 2}}}}}})", kCount));
  const auto checkpoint = Checkpoint::open(folder.path(), "model");
  const std::shared_ptr<const WeightSource> alone[] = {checkpoint_source(checkpoint), procedural_source(formula)};
  const std::shared_ptr<const WeightSource> many[] = {checkpoint_source(checkpoint, 3), procedural_source(formula, 64)};
  for (int kind = 0; kind < 2; ++kind) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor expected(dtype, {kCount}), read(dtype, {kCount});
      alone[kind]->read("w", expected);
      many[kind]->read("w", read);
      EXPECT_EQ(std::memcmp(read.view().raw(), expected.view().raw(), read.view().bytes()), 0)
          << kind << " " << dtype_name(dtype);
    }
  }
  const Tensor narrow(DType::kBF16, {kCount});
  many[0]->read("w", narrow);
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(narrow.data<BFloat16>()[i].bits, to_bfloat16(f32.data<float>()[i]).bits) << i;
  }
}

}  // namespace
}  // namespace zoetrope::io
