#include "io/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/project_folders.h"
#include "io/weights/test_files.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kStem = "model";

void write_shard(const TestFolder& folder, const std::string& file, const std::string& name, float value) {
  Tensor tensor(DType::kF32, {2});
  tensor.data<float>()[0] = value;
  Tensor half(DType::kBF16, {3});
  SafetensorsWriter writer;
  writer.add(name, tensor);
  writer.add("other." + file, half);
  writer.write(folder / file);
}

std::string open_error(const TestFolder& folder) {
  return error_of([&] { Checkpoint::open(folder.path(), kStem); });
}

TEST(Checkpoint, SingleFile) {
  const TestFolder folder;
  write_shard(folder, "model.safetensors", "a.weight", 5);
  const auto checkpoint = Checkpoint::open(folder.path(), kStem);
  EXPECT_EQ(checkpoint.folder(), folder.path());
  EXPECT_TRUE(checkpoint.contains("a.weight"));
  EXPECT_EQ(checkpoint.view("a.weight").data<float>()[0], 5);
  EXPECT_EQ(checkpoint.bytes(), 14u);
  const auto dtypes = checkpoint.dtypes();
  EXPECT_EQ(dtypes.at("F32").elements, 2);
  EXPECT_EQ(dtypes.at("BF16").bytes, 6u);
  EXPECT_EQ(dtypes.at("BF16").tensors, 1);
  EXPECT_THAT(error_of([&] { checkpoint.view("a.wieght"); }),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("'a.wieght' is missing"), HasSubstr("'a.weight'")));
}

TEST(Checkpoint, IndexIsAuthoritative) {
  const TestFolder folder;
  write_shard(folder, "s1.safetensors", "a", 1);
  write_shard(folder, "s2.safetensors", "a", 2);
  write_shard(folder, "model.safetensors", "a", 3);
  folder.write("model.safetensors.index.json",
               R"({"metadata": {}, "weight_map": {"a": "s2.safetensors", "other.s1.safetensors": "s1.safetensors"}})");
  const auto checkpoint = Checkpoint::open(folder.path(), kStem);
  EXPECT_EQ(checkpoint.view("a").data<float>()[0], 2);
  EXPECT_EQ(checkpoint.file("a"), folder / "s2.safetensors");
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "other.s1.safetensors"}));
  EXPECT_EQ(checkpoint.files().size(), 2u);
  const Checkpoint copy = checkpoint;
  EXPECT_EQ(copy.view("a").raw(), checkpoint.view("a").raw());
}

TEST(Checkpoint, FoldersThatCannotBeOpened) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { Checkpoint::open(folder / "none", kStem); }), HasSubstr("no such folder"));
  EXPECT_THAT(open_error(folder), AllOf(HasSubstr("model.safetensors or model.safetensors.index.json")));
  const std::string shard = std::string(kStem) + "-00001-of-00002.safetensors";
  write_shard(folder, shard, "a", 1);
  EXPECT_THAT(open_error(folder), AllOf(HasSubstr("holds shards (" + shard), HasSubstr("download it too")));
  const auto index = [&](const std::string& text) {
    folder.write("model.safetensors.index.json", text);
    return open_error(folder);
  };
  write_shard(folder, "s.safetensors", "a", 1);
  EXPECT_THAT(index("{}"), HasSubstr("'weight_map' is missing"));
  EXPECT_THAT(index(R"({"weight_map": {"a": 3}})"), HasSubstr("'weight_map.a'"));
  EXPECT_THAT(index(R"({"weight_map": {"a": "t.safetensors"}})"), HasSubstr("shard 't.safetensors' is missing"));
  EXPECT_THAT(index(R"({"weight_map": {"b": "s.safetensors"}})"), AllOf(HasSubstr("'b'"), HasSubstr("does not hold")));
  EXPECT_THAT(index(R"({"weight_map": {"a": "../s.safetensors"}})"), HasSubstr("leads out of the folder"));
  EXPECT_THAT(index(R"({"weight_map": {"a": "x/../../s.safetensors"}})"), HasSubstr("leads out of the folder"));
  EXPECT_THAT(index(R"({"weight_map": {"a": "/etc/passwd"}})"), HasSubstr("leads out of the folder"));
  EXPECT_THAT(index(R"({"weight_map": {"a": ""}})"), HasSubstr("leads out of the folder"));
  EXPECT_THAT(index(R"({"weight_map": {"a": "."}})"), HasSubstr("a regular file is needed"));
  EXPECT_EQ(index(R"({"weight_map": {"a": "s.safetensors"}})"), "no error");
}

TEST(Checkpoint, ReadsRecordedFolders) {
  const std::string root = std::string(kGoldenFolder) + "/pipelines/";
  const auto sharded = Checkpoint::open(root + "wan21_t2v/transformer", "diffusion_pytorch_model");
  EXPECT_EQ(sharded.files().size(), 3u);
  EXPECT_EQ(sharded.bytes(), 361536u);  // metadata.total_size of its index
  const auto mixed = Checkpoint::open(root + "wan22_i2v/transformer", "diffusion_pytorch_model");
  EXPECT_EQ(mixed.dtypes().size(), 2u);  // BF16 and F32 in one file
  EXPECT_NO_THROW(Checkpoint::open(root + "wan21_t2v/text_encoder", "model"));
}

}  // namespace
}  // namespace zoetrope::io
