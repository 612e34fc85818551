#include "io/weights/tensor_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_folder.h"
#include "io/weights/safetensors.h"

namespace zoetrope::io {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TensorTable, NamesOfOtherSchemes) {
  TensorSpec spec{.name = "a.weight", .shape = {2}};
  EXPECT_EQ(spec.name_in(NamingScheme::kOriginal), "a.weight");
  spec.alias(NamingScheme::kOriginal).name = "b.weight";
  EXPECT_EQ(spec.name_in(NamingScheme::kOriginal), "b.weight");
  EXPECT_EQ(spec.name_in(NamingScheme::kTied), "a.weight");
}

// All parts together are the whole, and none cuts a unit.
TEST(TensorTable, ShardsAreWholeUnits) {
  const TensorSpec spec{.name = "w", .shape = {5, 21}, .shard_axis = ShardAxis{1, 3}};
  for (const int parts : {1, 2, 3, 7, 9}) {
    int64_t end = 0;
    for (int part = 0; part < parts; ++part) {
      const IndexRange range = spec.shard(parts, part);
      EXPECT_EQ(range.begin, end);
      EXPECT_EQ(range.size() % 3, 0);
      end = range.end;
    }
    EXPECT_EQ(end, 21);
  }
}

TEST(TensorTable, APartHasThePartsShapes) {
  const TensorTable table{{.name = "w", .shape = {5, 21}, .shard_axis = ShardAxis{1, 3}}, {.name = "n", .shape = {8}}};
  EXPECT_EQ(part_of(table, 2, 0)[0].shape, (Shape{5, 9}));
  EXPECT_EQ(part_of(table, 2, 1)[0].shape, (Shape{5, 12}));
  EXPECT_EQ(part_of(table, 2, 1)[1].shape, (Shape{8}));
}

TEST(TensorTable, CountsBytesByWhatIsKeptInFloat32) {
  const TensorTable table{{.name = "w", .shape = {4, 8}},
                          {.name = "n", .shape = {8}, .role = TensorRole::kNorm, .keep_float32 = true}};
  EXPECT_EQ(totals(table).tensors, 2);
  EXPECT_EQ(totals(table).parameters, 40);
  EXPECT_EQ(resident_bytes(table, DType::kBF16), 32 * 2 + 8 * 4);
  EXPECT_EQ(resident_bytes(table, DType::kF32), 40 * 4);
}

TEST(TensorTable, FindsByName) {
  const TensorTable table{{.name = "a", .shape = {1}}, {.name = "b", .shape = {2}}};
  const TensorIndex index(table);
  EXPECT_EQ(index.find("b"), &table[1]);
  EXPECT_EQ(index.find("c"), nullptr);
  EXPECT_EQ(index["a"].shape, Shape({1}));
}

TEST(TensorTable, SaysWhatAFileLacks) {
  const TestFolder folder;
  SafetensorsWriter writer;
  const Tensor floats(DType::kF32, {2, 3}), integers(DType::kI32, {4});
  writer.add("right", floats);
  writer.add("turned", floats);
  writer.add("other.name", floats);
  writer.add("integers", integers);
  writer.add("more", floats);
  writer.write(folder / "w.safetensors");
  const auto source = checkpoint_source(Checkpoint::open_file(folder / "w.safetensors"));
  TensorTable table{{.name = "right", .shape = {2, 3}}, {.name = "tied", .shape = {2, 3}}};
  table[1].alias(NamingScheme::kTied).name = "other.name";
  EXPECT_TRUE(tensor_defects(*source, table).none());
  EXPECT_NO_THROW(require_tensors(*source, table));

  table.push_back({.name = "turned", .shape = {3, 2}});
  table.push_back({.name = "integers", .shape = {4}});
  table.push_back({.name = "lost", .shape = {5}});
  const TensorDefects defects = tensor_defects(*source, table);
  EXPECT_FALSE(defects.none());
  EXPECT_THAT(defects.missing, ElementsAre("'lost' [5] is missing; the config of this folder asks for it"));
  EXPECT_THAT(defects.misshapen,
              ElementsAre("'turned' of w.safetensors has shape [2, 3], but the config of this folder "
                          "asks for [3, 2]"));
  EXPECT_THAT(defects.unreadable,
              ElementsAre("'integers' of w.safetensors is stored as I32, but F32, BF16, F16 or F64 is needed"));
  try {
    require_tensors(*source, table);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(folder.path().string() + ": tensor 'lost'"));
  }
}

}  // namespace
}  // namespace zoetrope::io
