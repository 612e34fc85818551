#include "io/weights/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "base/disk_limit.h"
#include "base/project_folders.h"
#include "io/weights/test_files.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string open_error(const TestFolder& folder, const std::string& bytes) {
  const auto path = folder.write("bad.safetensors", bytes);
  return error_of([&] { TensorFile::open(path); });
}

std::string header_error(const std::string& header, size_t data_bytes) {
  const TestFolder folder;
  return open_error(folder, safetensors_bytes(header, std::string(data_bytes, '\0')));
}

TEST(Safetensors, WrittenIsRead) {
  const TestFolder folder;
  const Tensor a = counting({2, 3, 4});
  Tensor bytes(DType::kU8, {5});
  bytes.data<uint8_t>()[4] = 200;
  Tensor half(DType::kBF16, {3});
  half.data<uint16_t>()[2] = 0x3f80;
  const Tensor scalar = counting({});
  const Tensor none(DType::kI64, {0, 7});
  SafetensorsWriter writer;
  writer.add("bytes", bytes);
  writer.add("a", a);
  writer.add("half", half);
  writer.add("scalar", scalar);
  writer.add("none", none);
  writer.set_metadata("format", "pt \"quoted\" ü");
  writer.write(folder / "x.safetensors");
  EXPECT_EQ(folder.entries(), 1u);

  const auto file = TensorFile::open(folder / "x.safetensors");
  EXPECT_EQ(file->path(), folder / "x.safetensors");
  EXPECT_EQ(file->tensors().size(), 5u);
  EXPECT_EQ(file->metadata().at("format"), "pt \"quoted\" ü");
  for (const auto& [name, info] : file->tensors()) EXPECT_TRUE(info.aligned) << name;
  const TensorView read = file->tensor("a");
  EXPECT_EQ(read.shape(), (Shape{2, 3, 4}));
  EXPECT_EQ(read.dtype(), DType::kF32);
  EXPECT_EQ(std::memcmp(read.raw(), a.view().raw(), read.bytes()), 0);
  EXPECT_EQ(file->tensor("bytes").data<uint8_t>()[4], 200);
  EXPECT_EQ(file->tensor("half").data<uint16_t>()[2], 0x3f80);
  EXPECT_EQ(*file->tensor("scalar").data<float>(), 1.0f);
  EXPECT_EQ(file->tensor("scalar").rank(), 0);
  EXPECT_EQ(file->tensor("none").shape(), (Shape{0, 7}));
  file->will_need("a");
  file->will_need("none");
  uint64_t header = 0;
  std::memcpy(&header, file_bytes(folder / "x.safetensors").data(), 8);
  EXPECT_EQ(header % 8, 0u);
}

TEST(Safetensors, StridedViewsAreWrittenInRowMajorOrder) {
  const TestFolder folder;
  const Tensor a = counting({3, 4, 5});
  const TensorView turned = a.view().permute({2, 0, 1}).slice(0, 1, 4);  // [3, 3, 4]
  SafetensorsWriter writer;
  writer.add("turned", turned);
  writer.write(folder / "x.safetensors");
  const auto file = TensorFile::open(folder / "x.safetensors");
  const float* read = file->tensor("turned").data<float>();
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(*read++, a.data<float>()[(j * 4 + k) * 5 + i + 1]);
    }
  }
}

TEST(Safetensors, LongStridedRowGoesThroughTheBufferInPieces) {
  const TestFolder folder;
  const int64_t n = (int64_t{1} << 17) + 3;
  const Tensor a = counting({n, 2});
  SafetensorsWriter writer;
  writer.add("column", a.view().select(1, 1));
  writer.write(folder / "x.safetensors");
  const auto file = TensorFile::open(folder / "x.safetensors");
  const float* read = file->tensor("column").data<float>();
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(read[i], a.data<float>()[2 * i + 1]);
}

TEST(Safetensors, ListsWhatItCannotComputeWith) {
  const TestFolder folder;
  const std::string header = object({entry("f8", "F8_E4M3", "[3]", "[0, 3]"), entry("f4", "F4", "[4]", "[3, 5]"),
                                     entry("odd", "F32", "[1]", "[5, 9]")});
  const auto path = folder.write("x.safetensors", safetensors_bytes(header, std::string(9, '\1')));
  const auto file = TensorFile::open(path);
  EXPECT_EQ(file->info("f8").dtype_name, "F8_E4M3");
  EXPECT_FALSE(file->info("f8").dtype.has_value());
  EXPECT_EQ(file->info("f4").bytes, 2u);
  EXPECT_THAT(error_of([&] { file->tensor("f8"); }), AllOf(HasSubstr("'f8'"), HasSubstr("F8_E4M3")));
  EXPECT_THAT(error_of([&] { file->tensor("f9"); }), AllOf(HasSubstr("x.safetensors"), HasSubstr("'f9' is missing")));
  EXPECT_EQ(file->info("odd").aligned, file->info("odd").offset % 4 == 0);
  float value = 0;
  std::memcpy(&value, file->tensor("odd").raw(), 4);
  EXPECT_NE(value, 0);
}

TEST(Safetensors, FilesThatAreNotOne) {
  const TestFolder folder;
  const auto pointer =
      folder.write("pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
  EXPECT_THAT(error_of([&] { TensorFile::open(pointer); }), HasSubstr("is a Git LFS pointer"));
  EXPECT_THAT(error_of([&] { TensorFile::open(folder / "none"); }), HasSubstr("no such file"));
  EXPECT_THAT(error_of([&] { TensorFile::open(folder.path()); }), HasSubstr("a regular file is needed"));
  EXPECT_THAT(open_error(folder, ""), AllOf(HasSubstr("bad.safetensors"), HasSubstr("has 0 bytes")));
  EXPECT_THAT(open_error(folder, "1234567"), HasSubstr("has 7 bytes"));
  EXPECT_THAT(open_error(folder, std::string("\0\0\0\0\0\0\0\x80{}", 10)), HasSubstr("9223372036854775808"));
  EXPECT_THAT(open_error(folder, std::string(64, '\xff')), HasSubstr("18446744073709551615"));
  EXPECT_THAT(open_error(folder, std::string("\3\0\0\0\0\0\0\0{}", 10)), HasSubstr("header of 3 bytes"));
  EXPECT_THAT(open_error(folder, safetensors_bytes("", "")), HasSubstr("JSON object"));
  EXPECT_THAT(open_error(folder, safetensors_bytes("[]", "")), HasSubstr("JSON object"));
  EXPECT_THAT(open_error(folder, safetensors_bytes("{]", "")), HasSubstr("not valid JSON"));
  std::string deep = "{\"a\":";
  deep += std::string(1'000'000, '[');
  EXPECT_THAT(open_error(folder, safetensors_bytes(deep, "")), HasSubstr("nests deeper"));
  folder.write("empty.safetensors", safetensors_bytes("{}      ", ""));
  EXPECT_TRUE(TensorFile::open(folder / "empty.safetensors")->tensors().empty());
}

TEST(Safetensors, EntriesThatAreWrong) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& span, size_t data = 8) {
    return header_error(object({entry("t", dtype, shape, span)}), data);
  };
  EXPECT_EQ(one("F32", "[2]", "[0, 8]"), "no error");
  EXPECT_THAT(one("F31", "[2]", "[0, 8]"), AllOf(HasSubstr("bad.safetensors: tensor 't'"), HasSubstr("F31")));
  EXPECT_THAT(one("F32", "[3]", "[0, 8]"), AllOf(HasSubstr("12 bytes"), HasSubstr("span 8")));
  EXPECT_THAT(one("F32", "[2]", "[8, 0]"), HasSubstr("reversed"));
  EXPECT_THAT(one("F32", "[-2]", "[0, 8]"), HasSubstr("-2"));
  EXPECT_THAT(one("F32", "[2.0]", "[0, 8]"), HasSubstr("2.0"));
  EXPECT_THAT(one("F32", "[9223372036854775808]", "[0, 8]"), HasSubstr("9223372036854775808"));
  EXPECT_THAT(one("F32", "[4294967296, 4294967296]", "[0, 8]"), HasSubstr("overflows"));
  EXPECT_THAT(one("U8", "[0, 4294967296, 4294967296]", "[0, 0]", 0), HasSubstr("overflows"));
  EXPECT_THAT(one("F32", "[4294967296, 4294967296, 1, 1, 1, 1]", "[0, 8]"), HasSubstr("overflows"));
  EXPECT_THAT(one("F4", "[3]", "[0, 2]", 2), HasSubstr("whole bytes"));
  EXPECT_THAT(one("F32", "[2]", "[0, 8, 9]"), HasSubstr("pair"));
  EXPECT_THAT(one("F32", "[2]", "[0, \"8\"]"), HasSubstr("data_offsets"));
  EXPECT_THAT(one("F32", "2", "[0, 8]"), HasSubstr("list of integers"));
  EXPECT_THAT(header_error(R"({"t": 5})", 0), HasSubstr("must be an object"));
  EXPECT_THAT(header_error(R"({"t": {"dtype": "F32", "shape": [0]}})", 0), HasSubstr("no 'data_offsets'"));
  EXPECT_THAT(header_error(R"({"t": {"dtype": 3, "shape": [0], "data_offsets": [0,0]}})", 0), HasSubstr("'dtype'"));
  EXPECT_THAT(header_error(R"({"__metadata__": {"a": 1}})", 0), HasSubstr("key 'a'"));
  EXPECT_THAT(header_error(R"({"__metadata__": []})", 0), HasSubstr("__metadata__"));
}

TEST(Safetensors, DataThatDoesNotAddUp) {
  const auto two = [](const std::string& second, const std::string& span, size_t data) {
    return header_error(object({entry("t", "F32", "[2]", "[0, 8]"), entry(second, "F32", "[2]", span)}), data);
  };
  EXPECT_EQ(two("u", "[8, 16]", 16), "no error");
  EXPECT_THAT(two("t", "[8, 16]", 16), HasSubstr("'t' appears twice"));
  EXPECT_THAT(two("u", "[4, 12]", 12), AllOf(HasSubstr("'u'"), HasSubstr("overlaps tensor 't'")));
  EXPECT_THAT(two("u", "[0, 8]", 8), HasSubstr("overlaps"));
  EXPECT_EQ(two("u", "[12, 20]", 20), "no error");  // a gap
  EXPECT_THAT(two("u", "[8, 16]", 13),
              AllOf(HasSubstr("truncated"), HasSubstr("3 bytes are missing"), HasSubstr("'u'")));
  EXPECT_THAT(two("u", "[8, 16]", 0), HasSubstr("16 bytes are missing"));
  EXPECT_THAT(two("u", "[8, 16]", 18), HasSubstr("2 bytes after"));
  EXPECT_THAT(two("u", "[9223372036854775800, 9223372036854775807]", 16), HasSubstr("span 7"));
  EXPECT_EQ(header_error(object({entry("t", "F32", "[2]", "[8, 16]")}), 16), "no error");
  EXPECT_THAT(header_error("{}", 1), HasSubstr("1 bytes after"));
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const TestFolder folder;
  const Tensor a = counting({4});
  SafetensorsWriter writer;
  writer.add("a", a);
  writer.write(folder / "x.safetensors");
  const std::string whole = file_bytes(folder / "x.safetensors");
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(open_error(folder, whole.substr(0, length)), "no error") << length;
  }
}

// Whatever stands in the header: either an Error, or a file whose every tensor can be read to its last byte.
TEST(Safetensors, MutatedHeadersAreRefusedOrSafe) {
  const TestFolder folder;
  const Tensor a = counting({4, 3}), b = counting({5});
  SafetensorsWriter writer;
  writer.add("a", a);
  writer.add("b", b);
  writer.set_metadata("k", "v");
  writer.write(folder / "x.safetensors");
  const std::string whole = file_bytes(folder / "x.safetensors");
  const size_t header = whole.size() - a.view().bytes() - b.view().bytes();
  std::mt19937 random(7);
  int refused = 0, opened = 0;
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (uint32_t change = random() % 3 + 1; change > 0; --change) {
      bytes[random() % header] = "0123456789-,:[]{}\"aF \xff"[random() % 22];
    }
    const auto path = folder.write("bad.safetensors", bytes);
    try {
      const auto file = TensorFile::open(path);
      uint64_t sum = 0;
      for (const auto& [name, info] : file->tensors()) {
        const TensorView view = file->flat(name);
        for (size_t i = 0; i < view.bytes(); ++i) sum += view.data<uint8_t>()[i];
      }
      EXPECT_GT(sum, 0u);
      ++opened;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 150);
  EXPECT_GT(opened, 0);
}

TEST(Safetensors, WriterRefusesAndLeavesNothing) {
  const TestFolder folder;
  const Tensor a = counting({4096});
  SafetensorsWriter writer;
  writer.add("a", a);
  EXPECT_THAT(error_of([&] { writer.add("a", a); }), HasSubstr("'a' is added twice"));
  EXPECT_THAT(error_of([&] { writer.add("__metadata__", a); }), HasSubstr("__metadata__"));
  EXPECT_THAT(error_of([&] { writer.write(folder / "none/x.safetensors"); }), HasSubstr("none"));
  const DiskLimit limit(8192);
  EXPECT_THAT(error_of([&] { writer.write(folder / "x.safetensors"); }), HasSubstr("x.safetensors: cannot be written"));
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(Safetensors, ReadsWhatTheReferenceLibraryWrote) {
  const auto file = TensorFile::open(std::string(kGoldenFolder) + "/rng/randn.safetensors");
  EXPECT_EQ(file->info("seed0.16.f32").dtype, DType::kF32);
  EXPECT_NEAR(file->tensor("seed0.16.f32").data<float>()[0], -1.1258f, 5e-5f);
}

}  // namespace
}  // namespace zoetrope::io
