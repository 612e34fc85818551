#include "io/weights/block_formats.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/project_folders.h"
#include "io/weights/tensor_file.h"

namespace zoetrope::io {
namespace {

const std::string kBlocks = std::string(kGoldenFolder) + "/weights/blocks/";

std::vector<float> decoded(const TensorFile& file, const std::string& name, const BlockFormat& format) {
  const std::byte* stored = file.bytes(name);
  std::vector<float> values(static_cast<size_t>(file.info(name).shape.size()));
  for (size_t i = 0; i < values.size() / format.elements; ++i) {
    format.decode(stored + i * format.bytes, 1, values.data() + i * format.elements);
  }
  return values;
}

// FNV-1a over the values' 32-bit words.
std::string hash_of(const std::vector<float>& values) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const float value : values) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001B3;
  return fmt::format("{:016x}", hash);
}

// Random bits in every block, scales that are zero, subnormal, largest and negative: each value has the bits that
// gguf's own decoder gave.
TEST(BlockFormats, ValuesHaveTheRecordedBits) {
  const auto file = TensorFile::open(kBlocks + "blocks.gguf");
  const nlohmann::json recorded = JsonObject::load(kBlocks + "case.json").raw()["files"]["blocks.gguf"]["tensors"];
  int formats = 0;
  for (const auto& [name, expected] : recorded.items()) {
    const BlockFormat* format = find_block_format(expected["stored"].get<std::string>());
    if (format == nullptr) continue;
    ++formats;
    std::vector<float> values = decoded(*file, name, *format);
    EXPECT_EQ(hash_of(values), expected["fnv1a64"].get<std::string>()) << name;
    EXPECT_EQ(values[0], expected["first"][0].get<float>()) << name;
    EXPECT_EQ(std::signbit(values[0]), std::signbit(expected["first"][0].get<float>())) << name;
    values.back() = std::nextafter(values.back(), 1e30F);  // the check sees one bit
    EXPECT_NE(hash_of(values), expected["fnv1a64"].get<std::string>()) << name;
  }
  EXPECT_EQ(formats, 12);
}

TEST(BlockFormats, ADamagedScaleShowsInTheValues) {
  const auto file = TensorFile::open(std::string(kGoldenFolder) + "/weights/bad/scale_nan.gguf");
  const auto& [name, info] = *file->tensors().begin();
  bool damaged = false;
  for (const float value : decoded(*file, name, *find_block_format(info.dtype_name))) damaged |= !std::isfinite(value);
  EXPECT_TRUE(damaged);
}

TEST(BlockFormats, OtherNamesHaveNone) {
  for (const char* name : {"F32", "BF16", "IQ2_XXS", "q4_0", ""}) EXPECT_EQ(find_block_format(name), nullptr) << name;
}

}  // namespace
}  // namespace zoetrope::io
