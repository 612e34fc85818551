#include "io/weights/gguf.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "zoetrope/error.h"

#include "base/json.h"
#include "base/project_folders.h"
#include "io/weights/test_files.h"
#include "io/weights/weights.h"

namespace zoetrope::io {
namespace {

using testing::HasSubstr;

const std::string kWeights = std::string(kGoldenFolder) + "/weights/";

std::string refusal(const std::filesystem::path& path) {
  try {
    TensorFile::open(path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// A GGUF file, written field by field.
class Bytes {
 public:
  Bytes(uint64_t tensors, uint64_t entries) {
    bytes_ = "GGUF";
    number(uint32_t{3}).number(tensors).number(entries);
  }
  template <typename T>
  Bytes& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Bytes& text(const std::string& text) {
    number<uint64_t>(text.size());
    bytes_ += text;
    return *this;
  }
  // `extents` fastest first, as the format has them.
  Bytes& tensor(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type, uint64_t offset) {
    text(name).number(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) number(extent);
    return number(type).number(offset);
  }
  std::string with_data(const std::string& data, size_t alignment = 32) const {
    std::string all = bytes_;
    all.resize((all.size() + alignment - 1) / alignment * alignment, '\0');
    return all + data;
  }

 private:
  std::string bytes_;
};

constexpr uint32_t kU8 = 0, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBoolean = 7, kText = 8, kList = 9;

TEST(Gguf, RecordedFilesHaveTheirTypesAndShapes) {
  const auto file = TensorFile::open(kWeights + "blocks/blocks.gguf");
  const nlohmann::json tensors =
      JsonObject::load(kWeights + "blocks/case.json").raw()["files"]["blocks.gguf"]["tensors"];
  ASSERT_EQ(file->tensors().size(), tensors.size());
  EXPECT_GE(tensors.size(), 14U);
  EXPECT_EQ(file->container(), "GGUF 3");
  EXPECT_EQ(file->metadata().at("general.architecture"), "wan");
  EXPECT_EQ(file->metadata().at("general.quantization_version"), "2");
  for (const auto& [name, expected] : tensors.items()) {
    const TensorInfo& info = file->info(name);
    EXPECT_EQ(info.dtype_name, expected["stored"].get<std::string>()) << name;
    EXPECT_EQ(info.extents, expected["shape"].get<std::vector<int64_t>>()) << name;
    const bool plain = name == "F16" || name == "BF16" || name == "F32";
    EXPECT_EQ(info.dtype.has_value(), plain) << name;
  }
  // The files end with their last tensor, so that sizes of blocks add up to that of the file.
  uint64_t end = 0;
  for (const auto& [name, info] : file->tensors()) end = std::max(end, info.offset + info.bytes);
  EXPECT_LE(std::filesystem::file_size(kWeights + "blocks/blocks.gguf") - end, 31U);
  EXPECT_EQ(file->hash(TensorFile::Sample::kAll),
            TensorFile::open(kWeights + "blocks/blocks.gguf")->hash(TensorFile::Sample::kAll));
}

// What every recorded file is refused for. A NaN as a scale and a model of another kind are no faults of a header.
TEST(Gguf, DamagedFilesAreRefused) {
  const std::map<std::string, std::string> sentences = {
      {"magic", "does not start with 'GGUF'"},
      {"version1", "is GGUF of version 1"},
      {"big_endian", "big-endian"},
      {"empty", "is empty"},
      {"header_cut", "header is damaged"},
      {"kv_cut", "header is damaged"},
      {"data_cut", "download it again"},
      {"string_length", "header is damaged"},
      {"kv_count", "metadata entries"},
      {"tensor_count", "tensors, but"},
      {"array_length", "elements of metadata"},
      {"array_nested", "list of lists"},
      {"value_type", "unknown type 99"},
      {"key_twice", "appears twice"},
      {"tensor_twice", "appears twice"},
      {"dims_many", "4000 dimensions"},
      {"dims_overflow", "overflows"},
      {"dims_zero", "has size 0"},
      {"dims_huge", "is larger than the file"},
      {"row_blocks", "(48) are not a multiple of the block size of Q8_0 (32)"},
      {"type_unknown", "unknown type 4"},
      {"type_unsupported", "has type IQ2_XXS"},
      {"offset_unaligned", "unaligned offset 4"},
      {"offset_past_end", "download it again"},
      {"offset_overflow", "download it again"},
      {"overlap", "overlaps tensor"},
      {"alignment_zero", "alignment 0 is not a power of two"},
      {"alignment_odd", "alignment 24 is not a power of two"},
      {"alignment_type", "must be of type u32"},
      {"name_empty", "has no name"},
  };
  const std::set<std::string> readable = {"good", "good_v2", "scale_nan", "arch_other"};
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kWeights + "bad")) {
    if (entry.path().extension() != ".gguf") continue;
    ++files;
    const std::string name = entry.path().stem().string(), said = refusal(entry.path());
    if (readable.count(name) != 0) {
      EXPECT_EQ(said, "") << name;
    } else {
      ASSERT_EQ(sentences.count(name), 1U) << name;
      EXPECT_THAT(said, HasSubstr(sentences.at(name))) << name;
      EXPECT_THAT(said, HasSubstr(entry.path().string())) << name;
    }
  }
  EXPECT_EQ(files, sentences.size() + readable.size());
}

// Cut anywhere, a file is refused: no length is believed beyond its bytes.
TEST(Gguf, EveryShorterFileIsRefused) {
  const TestFolder folder;
  const std::string whole = Bytes(1, 2)
                                .text("a")
                                .number(kText)
                                .text("value")
                                .text("b")
                                .number(kList)
                                .number(kI16)
                                .number(uint64_t{2})
                                .number(int16_t{1})
                                .number(int16_t{2})
                                .tensor("t", {2, 3}, 0, 0)
                                .with_data(std::string(24, 'x'));
  EXPECT_EQ(refusal(folder.write("whole.gguf", whole)), "");
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    EXPECT_NE(refusal(folder.write("cut.gguf", whole.substr(0, bytes))), "") << bytes;
  }
}

TEST(Gguf, MetadataIsText) {
  const TestFolder folder;
  const auto file = TensorFile::open(folder.write("x.gguf", Bytes(0, 8)
                                                                .text("u8")
                                                                .number(kU8)
                                                                .number(uint8_t{200})
                                                                .text("i16")
                                                                .number(kI16)
                                                                .number(int16_t{-3})
                                                                .text("u32")
                                                                .number(kU32)
                                                                .number(uint32_t{4000000000})
                                                                .text("f32")
                                                                .number(kF32)
                                                                .number(0.5F)
                                                                .text("yes")
                                                                .number(kBoolean)
                                                                .number(uint8_t{1})
                                                                .text("u64")
                                                                .number(uint32_t{10})
                                                                .number(uint64_t{18446744073709551615U})
                                                                .text("i64")
                                                                .number(uint32_t{11})
                                                                .number(int64_t{-5})
                                                                .text("words")
                                                                .number(kList)
                                                                .number(kText)
                                                                .number(uint64_t{2})
                                                                .text("one")
                                                                .text("")
                                                                .with_data("")));
  const std::map<std::string, std::string> expected = {{"u8", "200"},         {"i16", "-3"},
                                                       {"u32", "4000000000"}, {"f32", "0.5"},
                                                       {"yes", "true"},       {"u64", "18446744073709551615"},
                                                       {"i64", "-5"},         {"words", "[2 of string]"}};
  EXPECT_EQ(file->metadata(), expected);
}

// Values are read in the order of the file, whatever the order of the descriptions and the alignment.
TEST(Gguf, PlainTensorsAreReadInPlace) {
  const TestFolder folder;
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::string data(64, '\0');
  std::memcpy(data.data(), values.data(), 8);
  data.append(reinterpret_cast<const char*>(values.data()), 24);
  const auto file = TensorFile::open(folder.write("x.gguf", Bytes(2, 1)
                                                                .text("general.alignment")
                                                                .number(kU32)
                                                                .number(uint32_t{64})
                                                                .tensor("b", {3, 2}, 0, 64)
                                                                .tensor("a", {2}, 0, 0)
                                                                .with_data(data, 64)));
  EXPECT_EQ(file->info("b").shape, (Shape{2, 3}));
  const TensorView b = file->tensor("b");
  EXPECT_EQ(std::vector<float>(b.data<float>(), b.data<float>() + 6), values);
  EXPECT_EQ(file->tensor("a").data<float>()[1], 2);
}

TEST(Gguf, BlocksWithAScaleBesideThemAreRefused) {
  const TestFolder folder;
  const auto checkpoint = Checkpoint::open_file(folder.write("x.gguf", Bytes(2, 0)
                                                                           .tensor("L.weight", {32, 1}, 8, 0)
                                                                           .tensor("L.weight_scale", {1}, 0, 64)
                                                                           .with_data(std::string(68, '\1'))));
  EXPECT_THAT(error_of([&] { checkpoint_source(checkpoint); }),
              testing::AllOf(HasSubstr("stored as Q8_0"), HasSubstr("'L.weight_scale' belongs to it too")));
}

// ggml has four axes; the shape of a convolution over time is then a list beside the tensor.
TEST(Gguf, TheOriginalShapeCounts) {
  const TestFolder folder;
  const auto with_shape = [&](const std::vector<int32_t>& shape) {
    Bytes bytes(1, 1);
    bytes.text("comfy.gguf.orig_shape.conv").number(kList).number(kI32).number(uint64_t{shape.size()});
    for (const int32_t extent : shape) bytes.number(extent);
    return folder.write("x.gguf", bytes.tensor("conv", {4, 6}, 0, 0).with_data(std::string(96, '\0')));
  };
  EXPECT_EQ(TensorFile::open(with_shape({2, 3, 1, 2, 2}))->info("conv").shape, (Shape{2, 3, 1, 2, 2}));
  for (const std::vector<int32_t>& wrong : std::vector<std::vector<int32_t>>{
           {2, 3}, {-2, -12}, {0, 24}, {1, 1, 1, 1, 1, 1, 1, 1, 24}, {}, {65536, 65536, 65536, 65536}}) {
    EXPECT_THAT(refusal(with_shape(wrong)), HasSubstr("cannot make")) << fmt::format("{}", fmt::join(wrong, " "));
  }
}

TEST(Gguf, PicklesAreNeverOpened) {
  const TestFolder folder;
  for (const char* name : {"a.pth", "a.pt", "a.ckpt", "a.bin"}) {
    EXPECT_THAT(refusal(folder.write(name, "PK")), HasSubstr("is a PyTorch pickle; use the .safetensors or .gguf"));
  }
}

}  // namespace
}  // namespace zoetrope::io
