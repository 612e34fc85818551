#include "io/weights/quantised_tensor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/project_folders.h"
#include "io/weights/scaled_tensor.h"
#include "io/weights/test_files.h"
#include "io/weights/weights.h"
#include "tensor/half.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kWeights = std::string(kGoldenFolder) + "/weights/";

std::vector<float> values_of(const WeightSource& source, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(source.info(name).shape.size()));
  source.read(name, TensorView(values.data(), DType::kF32, source.info(name).shape));
  return values;
}

TEST(Fp8, EveryCodeHasTheRecordedValue) {
  const auto recorded = TensorFile::open(kWeights + "blocks/expected.safetensors");
  std::byte codes[256];
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  for (const auto& [name, widen] : {std::pair("fp8.e4m3fn", &widen_e4m3), std::pair("fp8.e5m2", &widen_e5m2)}) {
    float values[256];
    widen(codes, 256, values);
    const auto* expected = recorded->tensor(name).data<float>();
    for (int i = 0; i < 256; ++i) {
      if (std::isnan(expected[i])) EXPECT_TRUE(std::isnan(values[i])) << name << " " << i;
      else EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected[i])) << name << " " << i;
    }
  }
}

// The stored integers, rotated by the recorded group in integers, times the scales that int8_codes() gives.
TEST(QuantisedTensor, CodesOfInt8MakeItsValues) {
  for (const std::string name : {"dit/int8_tensorwise.safetensors", "dit/int8_convrot.safetensors"}) {
    const auto file = TensorFile::open(kWeights + name);
    const auto source = checkpoint_source(Checkpoint::open_file(kWeights + name));
    int found = 0;
    for (const std::string& tensor : source->names()) {
      const std::optional<Int8Codes> codes = source->int8_codes(tensor);
      EXPECT_EQ(codes.has_value(), file->info(tensor).dtype_name == "I8") << tensor;
      if (!codes) continue;
      ++found;
      const Shape shape = source->info(tensor).shape;
      ASSERT_EQ(std::ssize(codes->scales), shape[0]);
      const auto rotation = codes->rotation;
      EXPECT_EQ(rotation > 0, name == "dit/int8_convrot.safetensors") << tensor << " " << rotation;
      const std::vector<float> values = values_of(*source, tensor);
      const auto* stored = reinterpret_cast<const int8_t*>(file->bytes(tensor));
      std::vector<int> whole(stored, stored + shape.size());
      int root = 1;
      for (int64_t step = 1; step < rotation; step *= 4, root *= 2) {
        for (int64_t i = 0; i < shape.size(); ++i) {
          if (i / step % 4 != 0) continue;
          int* const x = whole.data() + i;
          const int sum = x[0] + x[step] + x[2 * step] + x[3 * step];
          const int a = x[0], b = x[step], c = x[2 * step], d = x[3 * step];
          x[0] = sum - 2 * d;
          x[step] = sum - 2 * c;
          x[2 * step] = sum - 2 * b;
          x[3 * step] = sum - 2 * a;
        }
      }
      for (int64_t i = 0; i < shape.size(); ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(values[at], static_cast<float>(whole[at]) / static_cast<float>(root) *
                                  codes->scales[static_cast<size_t>(i / shape[1])])
            << tensor << " " << i;
      }
    }
    EXPECT_GT(found, 10) << name;
  }
}

// Ranges that begin and end within blocks, groups and rows.
TEST(QuantisedTensor, APartHasTheValuesOfTheWhole) {
  for (const char* file : {"blocks/blocks.gguf", "dit/int8_convrot.safetensors", "dit/nvfp4.safetensors",
                           "dit/mxfp8.safetensors", "dit/fp8_scaled_groups.safetensors"}) {
    const auto source = checkpoint_source(Checkpoint::open_file(kWeights + file));
    for (const std::string& name : source->names()) {
      const std::vector<float> whole = values_of(*source, name);
      const auto size = static_cast<int64_t>(whole.size());
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(1, size), std::pair<int64_t, int64_t>(0, size - 1),
                                       std::pair<int64_t, int64_t>(size / 3, size / 3 + 7)}) {
        const auto count = static_cast<size_t>(end - begin);
        std::vector<float> part(count);
        std::vector<BFloat16> rounded(count);
        source->read_range(name, {begin, end}, TensorView(part.data(), DType::kF32, {end - begin}));
        source->read_range(name, {begin, end}, TensorView(rounded.data(), DType::kBF16, {end - begin}));
        EXPECT_EQ(std::memcmp(part.data(), whole.data() + begin, count * sizeof(float)), 0) << file << " " << name;
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(rounded[i].bits, to_bfloat16(part[i]).bits) << file << " " << name;
      }
    }
  }
}

// A safetensors file of raw tensors.
class RawFile : public testing::Test {
 public:
  RawFile& with(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& bytes) {
    header_ += fmt::format(R"({}"{}": {{"dtype": "{}", "shape": {}, "data_offsets": [{}, {}]}})",
                           header_.empty() ? "" : ", ", name, dtype, shape, data_.size(), data_.size() + bytes.size());
    data_ += bytes;
    return *this;
  }
  RawFile& with_scale(const std::string& name, const std::vector<float>& values, const std::string& shape) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return with(name, "F32", shape, bytes);
  }
  // Opens what was added, and begins another file.
  std::shared_ptr<const WeightSource> open(int threads = 1) {
    std::string header = "{" + std::exchange(header_, "") + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    folder_.write("w.safetensors", safetensors_bytes(header, std::exchange(data_, "")));
    return checkpoint_source(Checkpoint::open_file(folder_ / "w.safetensors"), threads);
  }
  // `text` as it stands in JSON.
  RawFile& with_metadata(const std::string& key, const std::string& text) {
    header_ += fmt::format(R"({}"__metadata__": {{"{}": "{}"}})", header_.empty() ? "" : ", ", key, text);
    return *this;
  }
  std::string refusal() {
    return error_of([&] {
      const auto source = open();
      for (const std::string& name : source->names()) values_of(*source, name);
    });
  }
  RawFile& gap(size_t bytes) {
    data_.append(bytes, '?');
    return *this;
  }
  // Four codes of a layer L.
  RawFile& with_codes(const std::string& dtype) { return with("L.weight", dtype, "[2, 2]", "\x38\x40\x38\x40"); }
  RawFile& with_text(const std::string& json) {
    return with("L.comfy_quant", "U8", fmt::format("[{}]", json.size()), json);
  }

 private:
  TestFolder folder_;
  std::string header_, data_;
};

TEST_F(RawFile, ScalesAreNoWeights) {
  const auto source = with_codes("F8_E4M3")
                          .with_scale("L.scale_weight", {0.5F}, "[]")
                          .with_scale("L.scale_input", {3}, "[]")
                          .with("scaled_fp8", "F8_E4M3", "[0]", "")
                          .open();
  EXPECT_EQ(source->names(), std::vector<std::string>{"L.weight"});
  EXPECT_FALSE(source->contains("L.scale_weight"));
  EXPECT_EQ(values_of(*source, "L.weight"), (std::vector<float>{0.5F, 1, 0.5F, 1}));
  EXPECT_EQ(source->info("L.weight").dtype, DType::kF32);
  EXPECT_THAT(source->info("L.weight").dtype_name, HasSubstr("F8_E4M3 with a scale"));
}

// Else memory is planned too large, by up to two megabytes for each scale.
TEST_F(RawFile, NoScaleThatWasReadStaysResident) {
  constexpr int kLayers = 6;
  for (int i = 0; i < kLayers; ++i)
    with(fmt::format("{}.weight", i), "F8_E4M3", "[1500, 2000]", std::string(3000000, '\x38'))
        .with_scale(fmt::format("{}.weight_scale", i), {0.5F}, "[]");
  const auto source = open();
  EXPECT_EQ(resident_kilobytes("w.safetensors"), 0);
  EXPECT_EQ(values_of(*source, "3.weight").back(), 0.5F);
}

TEST_F(RawFile, AScaleCountsWhateverTheWeightIsStoredAs) {
  const auto source =
      with_scale("L.weight", {1, 2, 3, 4}, "[2, 2]").with_scale("L.weight_scale", {10, 100}, "[2]").open();
  EXPECT_EQ(values_of(*source, "L.weight"), (std::vector<float>{10, 20, 300, 400}));
}

TEST_F(RawFile, BytesAreReadAsTheirConfigurationSays) {
  const auto source =
      with_codes("U8").with_text(R"({"format": "float8_e4m3fn"})").with_scale("L.weight_scale", {2}, "[1]").open();
  EXPECT_EQ(values_of(*source, "L.weight"), (std::vector<float>{2, 4, 2, 4}));
}

TEST_F(RawFile, WhatDoesNotFitIsRefused) {
  EXPECT_THAT(with_codes("I8").refusal(), AllOf(HasSubstr("w.safetensors: tensor 'L.weight'"), HasSubstr("no scale")));
  EXPECT_THAT(with_codes("I8").with_scale("L.weight_scale", {1, 2, 3}, "[3]").refusal(),
              AllOf(HasSubstr("[3]"), HasSubstr("[2, 2]")));
  EXPECT_THAT(with_codes("I8").with("L.weight_scale", "I32", "[1]", "abcd").refusal(), HasSubstr("stored as I32"));
  EXPECT_THAT(with_codes("I8").with("L.weight_scale", "F32", "[0]", "").refusal(), HasSubstr("no value"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(with_codes("I8").with_scale("L.weight_scale", {nan}, "[]").refusal(), HasSubstr("nan"));
  EXPECT_THAT(with_codes("I8").with_scale("L.weight_scale", {1, nan}, "[2]").refusal(), HasSubstr("a NaN"));
  const auto codes = with_codes("I8").with_scale("L.weight_scale", {1, nan}, "[2]").open();
  EXPECT_THAT(error_of([&] { codes->int8_codes("L.weight"); }),
              HasSubstr("scale 'L.weight_scale' is nan for row 1; the file is damaged"));
  // Finite, with its highest bit of the exponent turned over.
  const auto large = with_codes("I8").with_scale("L.weight_scale", {1, 3.4e35f}, "[2]").open();
  EXPECT_THAT(error_of([&] { large->int8_codes("L.weight"); }), HasSubstr("for row 1; the file is damaged"));
  EXPECT_THAT(with("b", "F8_E4M3", "[2]", "\x7f\x10").refusal(), AllOf(HasSubstr("'b'"), HasSubstr("a NaN")));
  EXPECT_THAT(with("b", "F8_E5M2", "[2]", "\x7c\x10").refusal(), HasSubstr("infinite"));
  EXPECT_THAT(with_scale("L.weight_scale", {1}, "[]").refusal(), HasSubstr("no 'L.weight'"));
  EXPECT_THAT(with_text(R"({"format": "int8_tensorwise"})").refusal(), HasSubstr("no 'L.weight'"));
  EXPECT_THAT(
      with_codes("F8_E4M3").with_scale("L.weight_scale", {1}, "[]").with_scale("L.scale_weight", {1}, "[]").refusal(),
      HasSubstr("two scales"));
  EXPECT_THAT(
      with_codes("I8").with_scale("L.weight_scale", {1}, "[]").with_scale("L.weight_scale_2", {1}, "[]").refusal(),
      HasSubstr("second scale"));
}

TEST_F(RawFile, FormatsThatCannotBeReadAreNamed) {
  EXPECT_THAT(with_codes("U8").with_text(R"({"format": "convrot_w4a4"})").refusal(),
              AllOf(HasSubstr("convrot_w4a4"), HasSubstr("readable are fp8")));
  EXPECT_THAT(with_codes("U8").with_text(R"({"format": 3})").refusal(), HasSubstr("L.comfy_quant"));
  EXPECT_THAT(with_codes("U8").with_text("{").refusal(), HasSubstr("L.comfy_quant"));
  for (const auto& [name, format] : {std::pair("L.weight.absmax", "bitsandbytes"),
                                     std::pair("L.weight.quant_state.bitsandbytes__nf4", "bitsandbytes"),
                                     std::pair("L.qweight", "GPTQ"), std::pair("L.weight._data", "quanto")}) {
    EXPECT_THAT(with_scale(name, {1}, "[1]").refusal(), AllOf(HasSubstr(name), HasSubstr(format)));
  }
}

// Codes that are read without what such a tensor says have other values.
TEST_F(RawFile, TensorsNextToCodesThatAreUnknownAreRefused) {
  for (const char* name :
       {"L.weight_scale_inv", "L.scale", "L.SCB", "L.weight_zero_point", "L.scales", "L.weight.scale"}) {
    EXPECT_THAT(with_codes("F8_E4M3").with_scale(name, {2}, "[1]").refusal(),
                AllOf(HasSubstr(name), HasSubstr("a layer stored as F8_E4M3"), HasSubstr("does not know what it says")))
        << name;
    EXPECT_THAT(with_codes("I8").with_scale("L.weight_scale", {1}, "[]").with_scale(name, {2}, "[1]").refusal(),
                HasSubstr(name))
        << name;
  }
  EXPECT_THAT(with_codes("F8_E4M3").with_scale("L.weight_quantizer._scale", {2}, "[1]").refusal(),
              HasSubstr("L.weight_quantizer._scale"));
  // Of activations, which stay floats.
  EXPECT_EQ(
      with_codes("F8_E4M3").with_scale("L.output_scale", {2}, "[1]").with_scale("L.k_scale", {2}, "[1]").refusal(),
      "no error");
  // Of a component that is perhaps not read: when it is.
  const auto source = with_codes("F8_E4M3")
                          .with("text_encoders.L.weight", "F8_E4M3", "[2, 2]", "\x38\x40\x38\x40")
                          .with_scale("text_encoders.L.weight_scale_inv", {2}, "[1]")
                          .open();
  EXPECT_EQ(values_of(*source, "L.weight").front(), 1);
  EXPECT_THAT(error_of([&] { values_of(*source, "text_encoders.L.weight"); }), HasSubstr("weight_scale_inv"));
  // Next to floats, and of other layers, names are others' business.
  EXPECT_EQ(with_scale("L.weight", {1}, "[1]").with_scale("L.scale", {2}, "[1]").refusal(), "no error");
  EXPECT_EQ(with_codes("F8_E4M3").with_scale("L.bias", {2}, "[1]").with_scale("L.M.scale", {2}, "[1]").refusal(),
            "no error");
}

TEST_F(RawFile, ARotationInTheHeaderBelongsToALayer) {
  const auto refusal_of = [&](const std::string& layers, const std::string& version = "1.0") {
    const std::string text = fmt::format(R"({{\"format_version\":\"{}\",\"layers\":{{{}}}}})", version, layers);
    return with_metadata("_quantization_metadata", text)
        .with("L.weight", "I8", "[1, 4]", "abcd")
        .with_scale("L.weight_scale", {1}, "[]")
        .refusal();
  };
  const auto rotated = [](const std::string& layer) {
    return fmt::format(R"(\"{}\":{{\"format\":\"int8_tensorwise\",\"convrot\":true,\"convrot_groupsize\":4}})", layer);
  };
  EXPECT_EQ(refusal_of(rotated("L")), "no error");
  for (const char* layer : {"other.L", "L.weight", "M"})
    EXPECT_THAT(refusal_of(rotated(layer)), AllOf(HasSubstr(fmt::format("layer '{}' is rotated", layer)),
                                                  HasSubstr(fmt::format("there is no '{}.weight'", layer))));
  EXPECT_EQ(refusal_of(R"(\"M\":{\"format\":\"int8_tensorwise\"})"), "no error");
  // With the prefix of the tensors or without.
  EXPECT_EQ(refusal_of(rotated("model.diffusion_model.L")), "no error");
  EXPECT_EQ(refusal_of(rotated("model.L")), "no error");
  const std::string text = fmt::format(R"({{\"format_version\":1.0,\"layers\":{{{}}}}})", rotated("L"));
  const auto source = with_metadata("_quantization_metadata", text)
                          .with("diffusion_model.L.weight", "I8", "[1, 4]", std::string("\x4\x0\x0\x0", 4))
                          .with_scale("diffusion_model.L.weight_scale", {1}, "[]")
                          .open();
  EXPECT_EQ(values_of(*source, "diffusion_model.L.weight"), (std::vector<float>{2, 2, 2, -2}));
  EXPECT_EQ(refusal_of(R"(\"L\":{\"format\":\"int8_tensorwise\",\"convrot_groupsize\":4})"), "no error");
  EXPECT_THAT(refusal_of(rotated("L"), "2.0"), HasSubstr("format_version is 2.0"));
}

TEST_F(RawFile, RotationsThatCannotBeAreRefused) {
  const auto rotated = [&](const std::string& group) {
    return with_codes("I8")
        .with_scale("L.weight_scale", {1}, "[]")
        .with_text(fmt::format(R"({{"format": "int8_tensorwise", "convrot": true{}}})", group))
        .refusal();
  };
  for (const char* group : {"96", "2", "8", "0", "-4", "1", "4611686018427387904"}) {
    EXPECT_THAT(rotated(fmt::format(R"(, "convrot_groupsize": {})", group)),
                AllOf(HasSubstr("ConvRot group"), HasSubstr("not a power of 4")))
        << group;
  }
  EXPECT_THAT(rotated(""), HasSubstr("group 256 does not divide its 2 inputs"));
  // Either key may stand in `params`.
  for (const char* text : {R"("convrot": true, "convrot_groupsize": 3, "params": {})",
                           R"("convrot": true, "params": {"convrot_groupsize": 3})",
                           R"("convrot_groupsize": 3, "params": {"convrot": true})",
                           R"("params": {"convrot": true, "convrot_groupsize": 3})"}) {
    EXPECT_THAT(with_codes("I8")
                    .with_scale("L.weight_scale", {1}, "[]")
                    .with_text(fmt::format(R"({{"format": "int8_tensorwise", {}}})", text))
                    .refusal(),
                HasSubstr("ConvRot group 3 is not a power of 4"))
        << text;
  }
}

TEST_F(RawFile, ARotationIsOfIntegersOnly) {
  for (const char* format : {"mxfp8", "float8_e4m3fn"}) {
    EXPECT_THAT(with_codes("F8_E4M3")
                    .with_scale("L.weight_scale", {1}, "[]")
                    .with_text(fmt::format(R"({{"format": "{}", "convrot": true, "convrot_groupsize": 4}})", format))
                    .refusal(),
                HasSubstr(fmt::format("is {} but has a ConvRot group, which only int8 has", format)))
        << format;
  }
  const std::string codes(2 * 32, '\x38'), scales(128 * 4, '\x7f');
  EXPECT_THAT(with("L.weight", "F8_E4M3", "[2, 32]", codes)
                  .with("L.weight_scale", "U8", "[128, 4]", scales)
                  .with_text(R"({"format": "mxfp8", "convrot_groupsize": 4})")
                  .refusal(),
              HasSubstr("'L.weight': is mxfp8 but has a ConvRot group"));
  EXPECT_THAT(with("L.weight", "U8", "[2, 32]", codes)
                  .with("L.weight_scale", "U8", "[128, 4]", scales)
                  .with_scale("L.weight_scale_2", {1}, "[]")
                  .with_text(R"({"format": "nvfp4", "params": {"convrot_groupsize": 4}})")
                  .refusal(),
              HasSubstr("'L.weight': is nvfp4 but has a ConvRot group"));
}

// Of 0 is a scale only of zeros, in lists and alone, in every format.
TEST_F(RawFile, AScaleOfZeroIsThatOfZeros) {
  const std::string zeros(4, '\0'), last("\0\0\0\x08", 4), sign("\0\x80\0\0", 4);
  const auto linear = [&](const std::string& dtype, const std::string& codes, const std::vector<float>& scales,
                          const std::string& shape) {
    return with("L.weight", dtype, "[2, 2]", codes).with_scale("L.weight_scale", scales, shape).refusal();
  };
  for (const char* dtype : {"I8", "F8_E4M3", "F8_E5M2"}) {
    EXPECT_EQ(linear(dtype, zeros, {0}, "[]"), "no error") << dtype;
    EXPECT_EQ(linear(dtype, last, {0, 1}, "[2]"), "no error") << dtype;
    EXPECT_THAT(linear(dtype, last, {0}, "[1]"),
                AllOf(HasSubstr("w.safetensors: tensor 'L.weight': scale 'L.weight_scale' is 0 for row 1")))
        << dtype;
    EXPECT_THAT(linear(dtype, last, {1, 0}, "[2, 1]"), HasSubstr("'L.weight_scale' is 0 for row 1")) << dtype;
    EXPECT_THAT(linear(dtype, last, {1, 1, 1, 0}, "[2, 2, 1]"), HasSubstr("'L.weight_scale' is 0 for row 1")) << dtype;
  }
  EXPECT_EQ(linear("F8_E4M3", sign, {0}, "[]"), "no error");
  const auto rotated = [&](const std::string& codes, const std::vector<float>& scales, const std::string& shape) {
    return with("L.weight", "I8", "[2, 4]", codes)
        .with_scale("L.weight_scale", scales, shape)
        .with_text(R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 4})")
        .refusal();
  };
  EXPECT_EQ(rotated(zeros + zeros, {0}, "[]"), "no error");
  EXPECT_EQ(rotated(zeros + last, {0, 1}, "[2]"), "no error");
  EXPECT_THAT(rotated(zeros + last, {0}, "[]"), HasSubstr("'L.weight_scale' is 0 for row 1"));
  EXPECT_THAT(rotated(zeros + last, {1, 0}, "[2]"), HasSubstr("'L.weight_scale' is 0 for row 1"));
  const auto nv = [&](const std::string& codes) {
    return with("L.weight", "U8", "[2, 8]", codes)
        .with("L.weight_scale", "U8", "[128, 4]", std::string(512, '\x38'))
        .with_scale("L.weight_scale_2", {0}, "[]")
        .with_text(R"({"format": "nvfp4"})")
        .refusal();
  };
  EXPECT_EQ(nv(std::string(16, '\x08')), "no error");
  EXPECT_THAT(nv(std::string(15, '\0') + '\x01'), HasSubstr("'L.weight_scale_2' is 0 for row 1"));
}

TEST_F(RawFile, AScaleOfTheInputsIsFoldedIntoTheWeight) {
  const auto source = with("L.weight", "I8", "[2, 3]", "\x01\x02\x03\x04\x05\x06")
                          .with_scale("L.weight_scale", {1, 10}, "[2]")
                          .with_scale("L.pre_quant_scale", {2, 0.5F, -1}, "[3]")
                          .open();
  EXPECT_EQ(source->names(), std::vector<std::string>{"L.weight"});
  EXPECT_EQ(values_of(*source, "L.weight"), (std::vector<float>{2, 1, -3, 80, 25, -60}));
  float part[2];
  source->read_range("L.weight", {2, 4}, TensorView(part, DType::kF32, {2}));
  EXPECT_EQ(part[0], -3);
  EXPECT_EQ(part[1], 80);
  const auto plain =
      with_scale("L.weight", {1, 2, 3, 4}, "[2, 2]").with_scale("L.pre_quant_scale", {10, 100}, "[2]").open();
  EXPECT_EQ(values_of(*plain, "L.weight"), (std::vector<float>{10, 200, 30, 400}));
  const auto refused = [&](const std::vector<float>& scale, const std::string& shape) {
    return with_codes("F8_E4M3").with_scale("L.pre_quant_scale", scale, shape).refusal();
  };
  EXPECT_THAT(refused({1, 2, 3}, "[3]"), AllOf(HasSubstr("'L.pre_quant_scale'"), HasSubstr("[2] is needed")));
  EXPECT_THAT(refused({1, 0}, "[2]"), HasSubstr("'L.pre_quant_scale' is 0 for input 1"));
  EXPECT_THAT(refused({INFINITY, 1}, "[2]"), HasSubstr("'L.pre_quant_scale' is inf for input 0"));
  EXPECT_THAT(with_scale("L.pre_quant_scale", {1}, "[1]").refusal(), HasSubstr("no 'L.weight'"));
}

TEST_F(RawFile, AnIntegerThatIsNoWeightStaysOne) {
  const auto source = with("L.alpha", "I8", "[]", "\x03").open();
  EXPECT_EQ(source->info("L.alpha").dtype_name, "I8");
  EXPECT_FALSE(source->info("L.alpha").dtype);
}

TEST_F(RawFile, SwizzledScalesMustFit) {
  const std::string codes(2 * 32, '\x38'), scales(128 * 4, '\x7f');
  const auto mx = [&](const std::string& shape, const std::string& dtype) {
    return with("L.weight", "F8_E4M3", "[2, 32]", codes)
        .with_text(R"({"format": "mxfp8"})")
        .with("L.weight_scale", dtype, shape, scales)
        .refusal();
  };
  EXPECT_EQ(mx("[128, 4]", "U8"), "no error");
  EXPECT_EQ(mx("[128, 4]", "F8_E8M0"), "no error");
  EXPECT_THAT(mx("[512]", "U8"), HasSubstr("[512]"));
  EXPECT_THAT(mx("[256, 2]", "U8"), HasSubstr("[256, 2]"));
  EXPECT_THAT(mx("[128, 4]", "F8_E5M2"), HasSubstr("F8_E8M0 or U8 is needed"));
  EXPECT_THAT(with("L.weight", "U8", "[2, 8]", std::string(16, '\x11')).with_text(R"({"format": "nvfp4"})").refusal(),
              HasSubstr("no scale"));
}

// ModelOpt's files have the same tensors with other nibbles and scales in another order.
TEST_F(RawFile, FourBitsWithoutAnOrderAreRefused) {
  const auto nvfp4 = [&]() -> RawFile& {
    return with("L.weight", "U8", "[128, 32]", std::string(size_t{128} * 32, '\x11'))
        .with("L.weight_scale", "F8_E4M3", "[128, 4]", std::string(512, '\x38'))
        .with_scale("L.weight_scale_2", {1}, "[]");
  };
  EXPECT_THAT(nvfp4().refusal(), AllOf(HasSubstr("'L.weight'"), HasSubstr("nvfp4"), HasSubstr("in which order")));
  EXPECT_THAT(with("L.weight", "F8_E4M3", "[128, 128]", std::string(size_t{128} * 128, '\x38'))
                  .with("L.weight_scale", "F8_E8M0", "[128, 4]", std::string(512, '\x7f'))
                  .refusal(),
              AllOf(HasSubstr("mxfp8"), HasSubstr("in which order")));
  const std::string layers = R"({\"format_version\":\"1.0\",\"layers\":{\"L\":{\"format\":\"nvfp4\"}}})";
  EXPECT_EQ(nvfp4().with_metadata("_quantization_metadata", layers).refusal(), "no error");
  EXPECT_THAT(nvfp4().with_metadata("_quantization_metadata", layers + R"(", "quantization_config": "{})").refusal(),
              AllOf(HasSubstr("layer 'L'"), HasSubstr("ModelOpt")));
}

// The error of a thread reaches the caller.
TEST_F(RawFile, ADamagedValueInAnotherThreadIsAnError) {
  std::string codes(size_t{3} << 20, '\x38');
  codes.back() = '\x7f';
  const auto source = with("b", "F8_E4M3", "[3145728]", codes).open(3);
  EXPECT_THAT(error_of([&] { values_of(*source, "b"); }), AllOf(HasSubstr("'b'"), HasSubstr("a NaN")));
}

// Blocks go on from one row of the true shape to the next.
TEST(QuantisedTensor, RowsNeedNotBeWholeBlocks) {
  const auto bytes_of = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto text_of = [&](const std::string& text) { return bytes_of(uint64_t{text.size()}) + text; };
  std::string file = "GGUF" + bytes_of(uint32_t{3}) + bytes_of(uint64_t{1}) + bytes_of(uint64_t{1});
  file += text_of("comfy.gguf.orig_shape.w") + bytes_of(uint32_t{9}) + bytes_of(uint32_t{5}) + bytes_of(uint64_t{2});
  file += bytes_of(int32_t{4}) + bytes_of(int32_t{16});
  file += text_of("w") + bytes_of(uint32_t{2}) + bytes_of(uint64_t{32}) + bytes_of(uint64_t{2});
  file += bytes_of(uint32_t{8}) + bytes_of(uint64_t{0});  // Q8_0 at the beginning of the data
  file.resize((file.size() + 31) / 32 * 32, '\0');
  for (int block = 0; block < 2; ++block) {
    file += bytes_of(uint16_t{0x3c00});  // 1
    for (int i = 0; i < 32; ++i) file += static_cast<char>(32 * block + i);
  }
  const TestFolder folder;
  folder.write("w.gguf", file);
  const auto source = checkpoint_source(Checkpoint::open_file(folder / "w.gguf"));
  EXPECT_EQ(source->info("w").shape, (Shape{4, 16}));
  const std::vector<float> values = values_of(*source, "w");
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i));
}

// Also where a shard has it whose other tensors alone are placed.
TEST(QuantisedTensor, AnIndexThatLeavesAScaleOutIsRefused) {
  const TestFolder folder;
  const Tensor number(DType::kF32, {1}), codes(DType::kI8, {1, 1});
  const auto write = [&](const char* file, const std::vector<std::string>& names) {
    SafetensorsWriter writer;
    for (const std::string& name : names) writer.add(name, name == "m.weight" ? codes : number);
    writer.write(folder / file);
  };
  write("1.safetensors", {"m.weight", "m.input_scale", "x", "x.weight", "n.weight_scale"});
  write("2.safetensors", {"m.weight_scale", "n.weight", "n.bias"});
  const auto open = [&](const std::string& map) {
    folder.write("model.safetensors.index.json", R"({"weight_map": {)" + map + "}}");
    return error_of([&] { checkpoint_source(Checkpoint::open(folder.path(), "model")); });
  };
  const std::string weights = R"("m.weight": "1.safetensors", "n.weight": "2.safetensors")";
  EXPECT_THAT(open(weights), HasSubstr("places tensor 'm.weight', but not 'm.weight_scale' of 2.safetensors"));
  EXPECT_EQ(open(weights + R"(, "m.weight_scale": "2.safetensors")"), "no error");
  EXPECT_EQ(open(R"("x.weight": "1.safetensors", "n.weight": "2.safetensors")"), "no error");
}

TEST_F(RawFile, GapsBetweenTensorsAreLegal) {
  const auto source = with_scale("a", {1}, "[1]").gap(12).with_scale("b", {2}, "[1]").open();
  EXPECT_EQ(values_of(*source, "b"), std::vector<float>{2});
}

}  // namespace
}  // namespace zoetrope::io
