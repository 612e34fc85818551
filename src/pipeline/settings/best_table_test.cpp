#include "pipeline/settings/best_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_folder.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(BestTable, IsCheckedAndChangesNothing) {
  const TestFolder folder;
  const auto load = [&](const std::string& table) {
    folder.write("run.yml", "height: 64\nbest:" + table);
    GenerateOptions options;
    OptionSet set = describe_options(options);
    const std::string before = set.values();
    set.load_yaml(folder / "run.yml");
    EXPECT_TRUE(set.ignored_keys().empty());
    set.set_argument("height=default");
    EXPECT_EQ(set.values(), before);
  };
  load(
      "\n  hardware: h100_8\n  2: data_parallelism=2 ulysses_shards=1 softmax=online\n"
      "  8: attention=ring flash_block_sizes={block_q:256,block_kv:128} ring_direction=open\n");
  for (const auto& [table, said] :
       {std::pair("\n  2: ulysses_shards=2\n", "names no profile"),
        std::pair("\n  hardware: h100_8\n  0: ulysses_shards=2\n", "1 to 4096"),
        std::pair("\n  hardware: h100_8\n  two: ulysses_shards=2\n", "'two' is not a whole number"),
        std::pair("\n  hardware: h100_8\n  2:\n", "'2' has no value"),
        std::pair("\n  hardware: h100_8\n  2: ulysses_shards\n", "row 2: ulysses_shards="),
        std::pair("\n  hardware: h100_8\n  2: ulysses_shards=none\n", "ulysses_shards=none"),
        std::pair("\n  hardware: h100_8\n  8: attention=nosuch\n", "row 8: "),
        std::pair("\n  hardware: h100_8\n  8: ulysses_shards=3\n", "row 8: ulysses_shards=3 does not divide"),
        std::pair("\n  hardware: h100_8\n  8: data_parallelism=3\n", "data_parallelism=3 does not divide 8 ranks"),
        std::pair("\n  hardware: h100_8\n  8: softmax=online\n  08: softmax=online\n", "two rows of 8 ranks"),
        std::pair("\n  hardware: h100_8\n  2: height=64\n", "'height=64' does not say how ranks are used"),
        std::pair("\n  hardware: h100_8\n  2: {ulysses_shards: 2}\n", "single values"),
        std::pair(" [2, 4]\n", "single"), std::pair(" h100_8\n", "'h100_8' has no value")}) {
    EXPECT_THAT(error_of([&] { load(table); }), AllOf(HasSubstr("run.yml line "), HasSubstr(said))) << table;
  }
}

TEST(BestTable, BelongsToFiles) {
  GenerateOptions options;
  OptionSet set = describe_options(options);
  EXPECT_THAT(error_of([&] { set.set_argument("best=hardware:h100_8,2:ulysses_shards=2"); }),
              HasSubstr("best is a table that only files have"));
}

}  // namespace
}  // namespace zoetrope::pipeline
