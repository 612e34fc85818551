#include "io/weights/tensor_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "io/weights/safetensors.h"
#include "io/weights/test_files.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Out of order, as weights are packed from tensors that are apart: touching a neighbour brings back released pages.
TEST(TensorFile, NothingStaysResidentThatWasReleased) {
  const TestFolder folder;
  const Tensor values = counting({700, 1000});
  SafetensorsWriter writer;
  for (const char* name : {"a", "b", "c", "d", "e", "f"}) writer.add(name, values);
  const auto path = folder.path() / "many.safetensors";
  writer.write(path);
  const auto file = TensorFile::open(path);
  for (const char* name : {"a", "c", "e", "b", "d", "f"}) {
    const TensorView view = file->tensor(name);
    EXPECT_EQ(std::accumulate(view.data<float>(), view.data<float>() + view.size(), 0.0), 700000.0 * 700001.0 / 2);
    EXPECT_GE(resident_kilobytes(path), 2700);
    file->release(name);
    EXPECT_EQ(resident_kilobytes(path), 0) << name;
    EXPECT_EQ(view.data<float>()[699999], 700000);  // mapped again
    file->release(name);
  }
}

TEST(TensorFile, MoreThanFiveAxesAreHadFlatOnly) {
  const TestFolder folder;
  const auto path =
      folder.write("x.safetensors", safetensors_bytes(object({entry("t", "U8", "[1,2,1,1,1,3]", "[0, 6]")}), "abcdef"));
  const auto file = TensorFile::open(path);
  EXPECT_EQ(file->info("t").extents, (std::vector<int64_t>{1, 2, 1, 1, 1, 3}));
  EXPECT_EQ(file->info("t").shape, (Shape{6}));
  EXPECT_EQ(file->flat("t").shape(), (Shape{6}));
  EXPECT_EQ(file->flat("t").data<char>()[5], 'f');
  EXPECT_THAT(error_of([&] { file->tensor("t"); }), AllOf(HasSubstr("'t'"), HasSubstr("6 axes")));
}

TEST(TensorFile, AChangeInPlaceWithItsTimeSetBackIsNoticed) {
  const TestFolder folder;
  constexpr int64_t kCount = 1 << 16;
  SafetensorsWriter writer;
  const Tensor a = counting({kCount});
  writer.add("a", a);
  writer.write(folder / "x.safetensors");
  const auto before = TensorFile::open(folder / "x.safetensors");
  const std::string identity = before->identity();
  EXPECT_EQ(before->identity(), identity);
  EXPECT_EQ(TensorFile::open(folder / "x.safetensors")->identity(), identity);
  before->require_unchanged();
  std::string bytes = file_bytes(folder / "x.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);  // far from the blocks that are looked at
  rewrite_in_place(folder / "x.safetensors", bytes);
  EXPECT_THAT(error_of([&] { before->require_unchanged(); }), HasSubstr("was changed while it was in use"));
  const auto after = TensorFile::open(folder / "x.safetensors");
  EXPECT_EQ(after->hash(TensorFile::Sample::kBlocks), before->hash(TensorFile::Sample::kBlocks));
  EXPECT_NE(after->identity(), identity);
}

// What holds where a file system's times tell nothing.
TEST(TensorFile, HashesSeeEveryTensorOrEveryByte) {
  using Sample = TensorFile::Sample;
  const TestFolder folder;
  std::vector<std::string> entries;
  std::string data;
  for (const size_t bytes : std::vector<size_t>{4, 4096, 4097, 3, 0, 40'000}) {
    entries.push_back(entry(fmt::format("t{}", bytes), "U8", fmt::format("[{}]", bytes),
                            fmt::format("[{}, {}]", data.size(), data.size() + bytes)));
    data += std::string(bytes, 'x');
  }
  const auto hash = [&](const std::string& header, const std::string& content, Sample sample) {
    return TensorFile::open(folder.write("x.safetensors", safetensors_bytes(header, content)))->hash(sample);
  };
  const std::string header = object(entries);
  const uint64_t blocks = hash(header, data, Sample::kBlocks), all = hash(header, data, Sample::kAll);
  EXPECT_NE(hash(header + " ", data, Sample::kBlocks), blocks);
  EXPECT_NE(hash(header + " ", data, Sample::kAll), all);
  // Offsets of a byte in the midst of each tensor, and of first and last ones.
  for (const size_t at : std::vector<size_t>{1, 4 + 2048, 4100 + 2048, 8198, 8200 + 20'000}) {
    std::string other = data;
    other[at] = 'y';
    EXPECT_NE(hash(header, other, Sample::kBlocks), blocks) << at;
  }
  for (size_t at = 0; at < data.size(); at += at < 8300 ? 83 : 997) {
    std::string other = data;
    other[at] = 'y';
    EXPECT_NE(hash(header, other, Sample::kAll), all) << at;
  }
}

TEST(TensorFile, AnEmptyFileIsRefused) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { TensorFile::open(folder.write("x.safetensors", "")); }), HasSubstr("has 0 bytes"));
}

}  // namespace
}  // namespace zoetrope::io
