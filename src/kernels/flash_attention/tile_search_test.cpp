// Tile sizes: what is remembered and for what, what a broken cache says, that a search keeps the table's sizes unless
// it found better ones, and that no size changes what is computed.
#include "kernels/flash_attention/tile_search.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "base/test_folder.h"
#include "kernels/flash_attention/testing.h"

namespace zoetrope::kernels {
namespace {

using testing::HasSubstr;

FlashProblem problem_of(int64_t keys, int64_t head_dim = 64) {
  FlashProblem p;
  p.query_tokens = 200;
  p.key_tokens = keys;
  p.head_dim = head_dim;
  p.scale = 0.125f;
  return p;
}

TEST(TileKey, BucketsAreNearestPowersOfTwo) {
  for (const auto& [keys, bucket] : {std::pair<int64_t, int64_t>{0, 1},
                                     {1, 1},
                                     {2, 2},
                                     {724, 512},
                                     {725, 1024},
                                     {1024, 1024},
                                     {1448, 1024},
                                     {1449, 2048},
                                     {32760, 32768},
                                     {75600, 65536}}) {
    EXPECT_EQ(tile_key(problem_of(keys)).keys, bucket) << keys;
  }
}

TEST(TileKey, TellsProblemsApart) {
  const TileKey key = tile_key(problem_of(1000));
  EXPECT_EQ(key, tile_key(problem_of(1001)));
  EXPECT_FALSE(key.cpu.empty());
  FlashProblem other = problem_of(1000, 80);
  EXPECT_NE(key, tile_key(other));
  other = problem_of(1000);
  other.softmax = Softmax::kFixedMax;
  EXPECT_NE(key, tile_key(other));
  other = problem_of(1000);
  other.implementation = "avx2";
  EXPECT_EQ(key == tile_key(other), key.implementation == "avx2");
}

TEST(TileCache, RemembersAndReplaces) {
  const TestFolder folder;
  const TileCache cache(folder / "a/b/tiles.json");
  EXPECT_TRUE(cache.entries().empty());
  const TileKey one = tile_key(problem_of(1000)), two = tile_key(problem_of(5000));
  cache.remember({one, {128, 256}, 1.02});
  cache.remember({two, {512, 128}, 1.0});
  cache.remember({one, {384, 256}, 1.03});
  EXPECT_EQ(cache.entries().size(), 2u);
  EXPECT_EQ(cache.find(one)->sizes, (TileSizes{384, 256}));
  EXPECT_EQ(cache.find(two)->sizes, (TileSizes{512, 128}));
  EXPECT_FALSE(cache.find(tile_key(problem_of(1000, 80))));
}

TEST(TileCache, OneOfAnotherFormatIsNotRead) {
  const TestFolder folder;
  const TileCache cache(folder.write("tiles.json", R"({"format": 99, "what": "ever"})"));
  EXPECT_TRUE(cache.entries().empty());
}

TEST(TileCache, BrokenFilesSayWhatToDo) {
  const TestFolder folder;
  const std::string entry =
      R"({"cpu":"x","implementation":"avx2","dtype":"F32","blocks":"","head_dim":64,"softmax":"online","keys":64,"gain":1,)";
  for (const std::string& text : {std::string("{"), std::string("[]"), std::string(R"({"format":2})"),
                                  R"({"format":2,"tiles":[)" + entry + R"("block_q":0,"block_kv":64}]})",
                                  R"({"format":2,"tiles":[)" + entry + R"("block_q":64,"block_kv":99999999}]})",
                                  R"({"format":2,"tiles":[)" + entry + R"("block_q":"wide","block_kv":64}]})"}) {
    const TileCache cache(folder.write("tiles.json", text));
    EXPECT_THAT(error_of([&] { cache.entries(); }), HasSubstr("not a readable cache of tile sizes")) << text;
    EXPECT_THAT(error_of([&] { cache.entries(); }), HasSubstr("delete it")) << text;
  }
}

TEST(TileCache, FoldersThatCannotBeMade) {
  const TestFolder folder;
  folder.write("file", "");
  const TileEntry entry{tile_key(problem_of(1000)), {128, 256}, 1.0};
  EXPECT_THAT(error_of([&] { TileCache(folder / "file/tiles.json").remember(entry); }),
              HasSubstr("cannot make this folder"));
  EXPECT_THAT(error_of([&] { TileCache({}).remember(entry); }), HasSubstr("neither XDG_CACHE_HOME nor HOME"));
}

// Puts a variable of the environment back as it was.
class Variable {
 public:
  explicit Variable(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) value_ = value;
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { value_ ? ::setenv(name_, value_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> value_;
};

TEST(TileCache, FollowsTheBaseDirectories) {
  const Variable xdg_before("XDG_CACHE_HOME"), home_before("HOME");
  const auto with = [](const char* xdg, const char* home) {
    xdg == nullptr ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", xdg, 1);
    home == nullptr ? ::unsetenv("HOME") : ::setenv("HOME", home, 1);
    return TileCache::default_file().string();
  };
  EXPECT_EQ(with("/x", "/h"), "/x/zoetrope/tiles.json");
  EXPECT_EQ(with("relative", "/h"), "/h/.cache/zoetrope/tiles.json");
  EXPECT_EQ(with(nullptr, "/h"), "/h/.cache/zoetrope/tiles.json");
  EXPECT_EQ(with(nullptr, nullptr), "");
}

TEST(TileSearch, KeepsTheTableUnlessBeaten) {
  const FlashProblem p = problem_of(500);
  std::vector<TileCandidate> found = tile_candidates(p);
  ASSERT_GT(found.size(), 5u);
  EXPECT_TRUE(found[0].table);
  for (TileCandidate& c : found) c.seconds = 1;
  std::swap(found[0], found[2]);
  found[0].seconds = 0.995;  // within the scatter
  EXPECT_EQ(tile_entry(p, found).sizes, found[2].sizes);
  found[0].seconds = 0.9;
  EXPECT_EQ(tile_entry(p, found).sizes, found[0].sizes);
  EXPECT_NEAR(tile_entry(p, found).gain, 1 / 0.9, 1e-9);
}

TEST(TileSearch, TimesEveryCandidateAndRemembers) {
  const TestFolder folder;
  const TileCache cache(folder / "tiles.json");
  const FlashProblem p = problem_of(300);
  Stream stream(2);
  EXPECT_EQ(tuned_tiles(p, stream, cache, WhenUnknown::kTable), TileSizes{});
  EXPECT_FALSE(std::filesystem::exists(cache.file()));
  const auto found = search_tiles(p, stream, 0);
  EXPECT_EQ(found.size(), tile_candidates(p).size());
  for (const TileCandidate& c : found) {
    EXPECT_GT(c.seconds, 0);
    EXPECT_LT(c.seconds, 100);
  }
  cache.remember({tile_key(p), {384, 512}, 1.1});
  EXPECT_EQ(tuned_tiles(p, stream, cache, WhenUnknown::kTable), (TileSizes{384, 512}));
  EXPECT_EQ(tuned_tiles(p, stream, cache, WhenUnknown::kSearch), (TileSizes{384, 512}));
  const FlashProblem unknown = problem_of(300, 32);
  const TileSizes sizes = tuned_tiles(unknown, stream, cache, WhenUnknown::kSearch);
  EXPECT_GT(sizes.query, 0);
  EXPECT_EQ(cache.find(tile_key(unknown))->sizes, sizes);
}

// Masks and biases are not timed.
TEST(TileSearch, ProblemsWithMaskAndBias) {
  FlashProblem p = problem_of(100);
  p.mask = MaskKind::kKeyLengths;
  p.bias = true;
  Stream stream(1);
  EXPECT_FALSE(search_tiles(p, stream, 0).empty());
}

TEST(TileSearch, NothingToSearchForInTheScalarImplementation) {
  FlashProblem p = problem_of(30);
  p.implementation = "scalar";
  Stream stream(1);
  EXPECT_TRUE(tile_candidates(p).empty());
  EXPECT_EQ(tuned_tiles(p, stream, TileCache({}), WhenUnknown::kSearch), TileSizes{});
  EXPECT_THAT(error_of([&] { search_tiles(p, stream, 0); }), HasSubstr("'scalar' has no tiles"));
}

class FlashTiles : public testing::TestWithParam<flash_testing::Variant> {
 protected:
  void SetUp() override { ZT_SKIP_WHERE_REFUSED(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Implementations, FlashTiles, testing::ValuesIn(flash_testing::softmax_variants()),
                         flash_testing::variant_name);

TEST_P(FlashTiles, AnySizeComputesTheSame) {
  flash_testing::Case c(GetParam(), 1, 301, 777, 2, 40);
  for (const TileSizes& sizes : {TileSizes{1, 1}, {64, 64}, {100, 900}, {4096, 32}, {4096, 8192}}) {
    c.problem.tiles = sizes;
    c.attend();
    EXPECT_TRUE(matches_reference(c)) << sizes.query << " × " << sizes.keys;
    c.fold({{0, 333}, {333, 777}});
    EXPECT_TRUE(matches_reference(c)) << sizes.query << " × " << sizes.keys;
  }
}

}  // namespace
}  // namespace zoetrope::kernels
