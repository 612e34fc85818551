#include "io/weights/part_source.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/project_folders.h"
#include "io/weights/test_files.h"
#include "tensor/half.h"

namespace zoetrope::io {
namespace {

std::vector<float> values_of(const WeightSource& source, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(source.info(name).shape.size()));
  source.read(name, TensorView(values.data(), DType::kF32, source.info(name).shape));
  return values;
}

// By outputs, by inputs, in units of two, and whole.
TensorTable table() {
  return {{.name = "rows", .shape = {6, 5}, .shard_axis = ShardAxis{0, 2}},
          {.name = "columns", .shape = {3, 10}, .shard_axis = ShardAxis{1, 2}},
          {.name = "bias", .shape = {6}, .shard_axis = ShardAxis{0, 2}},
          {.name = "whole", .shape = {4, 2}}};
}

class PartSourceTest : public testing::Test {
 protected:
  PartSourceTest() {
    SafetensorsWriter writer;
    for (const TensorSpec& spec : table()) {
      stored_.push_back(counting(spec.shape));
      writer.add(spec.name, stored_.back());
    }
    writer.write(folder_ / "w.safetensors");
    whole_ = checkpoint_source(Checkpoint::open_file(folder_ / "w.safetensors"));
  }
  // What part `part` of a table's tensor is.
  std::vector<float> expected(const TensorSpec& spec, int parts, int part) const {
    std::vector<float> values;
    const int64_t columns = spec.shape.rank() == 1 ? 1 : spec.shape[1];
    for (int64_t i = 0; i < spec.shape.size(); ++i) {
      const int64_t at = spec.shard_axis && spec.shard_axis->axis == 1 ? i % columns : i / columns;
      if (!spec.shard_axis || spec.shard(parts, part).contains(at)) values.push_back(static_cast<float>(i + 1));
    }
    return values;
  }

  TestFolder folder_;
  std::vector<Tensor> stored_;
  std::shared_ptr<const WeightSource> whole_;
};

TEST_F(PartSourceTest, HasTheValuesAndShapesOfThePart) {
  for (int parts = 1; parts <= 4; ++parts) {
    for (int part = 0; part < parts; ++part) {
      const auto source = part_source(whole_, table(), parts, part);
      const TensorTable of = part_of(table(), parts, part);
      require_tensors(*source, of);
      for (size_t i = 0; i < of.size(); ++i) {
        const std::string where = of[i].name + " " + std::to_string(part) + " of " + std::to_string(parts);
        const std::vector<float> wanted = expected(table()[i], parts, part);
        EXPECT_EQ(source->info(of[i].name).bytes, wanted.size() * sizeof(float)) << where;
        EXPECT_EQ(values_of(*source, of[i].name), wanted) << where;
        // From within a row into the one after the next.
        const auto size = static_cast<int64_t>(wanted.size());
        if (size < 4) continue;
        std::vector<BFloat16> some(static_cast<size_t>(size - 2));
        source->read_range(of[i].name, {1, size - 1}, TensorView(some.data(), DType::kBF16, {size - 2}));
        for (size_t j = 0; j < some.size(); ++j) EXPECT_EQ(to_float(some[j]), wanted[j + 1]) << where;
      }
    }
  }
}

TEST_F(PartSourceTest, RowsAreMappedAndColumnsAreNot) {
  const auto source = part_source(whole_, table(), 3, 1);
  EXPECT_EQ(source->mapped("rows").data<float>()[0], 11);
  EXPECT_EQ(source->mapped("rows").shape(), (Shape{2, 5}));
  EXPECT_FALSE(source->mapped("columns"));
  EXPECT_EQ(source->mapped("whole").shape(), (Shape{4, 2}));
}

// A cache of one part must not be taken for another's.
TEST_F(PartSourceTest, EveryPartHasAnIdentity) {
  const auto first = part_source(whole_, table(), 2, 0), second = part_source(whole_, table(), 2, 1);
  EXPECT_NE(first->identity(), second->identity());
  EXPECT_NE(first->identity(), part_source(whole_, table(), 3, 0)->identity());
  EXPECT_NE(first->identity(), whole_->identity());
}

// Rows keep their scales; columns cannot be taken out of a rotated group.
TEST(PartSource, CutsInt8Codes) {
  const auto whole =
      checkpoint_source(Checkpoint::open_file(std::string(kGoldenFolder) + "/weights/dit/int8_convrot.safetensors"));
  const std::string name = "blocks.0.ffn.0.weight";  // [96, 64], groups of 16
  const std::optional<Int8Codes> all = whole->int8_codes(name);
  ASSERT_TRUE(all && all->rotation == 16);
  const auto part_of = [&](int axis, int64_t unit, int parts, int part) {
    const TensorTable table{{.name = name, .shape = {96, 64}, .shard_axis = ShardAxis{axis, unit}}};
    return part_source(whole, table, parts, part)->int8_codes(name);
  };
  const std::optional<Int8Codes> rows = part_of(0, 1, 3, 1);
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->scales, std::vector<float>(all->scales.begin() + 32, all->scales.begin() + 64));
  const std::optional<Int8Codes> columns = part_of(1, 16, 2, 1);
  ASSERT_TRUE(columns);
  EXPECT_EQ(columns->scales, all->scales);
  EXPECT_FALSE(part_of(1, 1, 3, 1));
}

// Parts that begin within a block of a quantised tensor.
TEST(PartSource, CutsQuantisedTensors) {
  const auto whole =
      checkpoint_source(Checkpoint::open_file(std::string(kGoldenFolder) + "/weights/blocks/blocks.gguf"));
  TensorTable table;
  for (const std::string& name : whole->names()) {
    const Shape shape = whole->info(name).shape;
    if (shape.rank() == 2) table.push_back({.name = name, .shape = shape, .shard_axis = ShardAxis{1, 1}});
  }
  ASSERT_GT(table.size(), 5u);
  for (int part = 0; part < 3; ++part) {
    const auto source = part_source(whole, table, 3, part);
    for (const TensorSpec& spec : table) {
      const std::vector<float> all = values_of(*whole, spec.name), mine = values_of(*source, spec.name);
      const IndexRange columns = spec.shard(3, part);
      size_t wrong = 0;
      for (size_t i = 0; i < mine.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / columns.size(), column = static_cast<int64_t>(i) % columns.size();
        wrong += mine[i] != all[static_cast<size_t>(row * spec.shape[1] + columns.begin + column)];
      }
      EXPECT_EQ(mine.size(), static_cast<size_t>(spec.shape[0] * columns.size())) << spec.name;
      EXPECT_EQ(wrong, 0u) << spec.name;
    }
  }
}

}  // namespace
}  // namespace zoetrope::io
