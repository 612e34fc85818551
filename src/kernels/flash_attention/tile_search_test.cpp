// Tile sizes: what is remembered and for what, what a broken cache says, that a search keeps the table's sizes unless
// it found better ones, and that no size changes what is computed.
#include "kernels/flash_attention/tile_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <set>

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
  std::swap(found[0], found[2]);
  found[0].gain = 1.1;
  found[0].sure_gain = 1.005;  // within the scatter
  EXPECT_EQ(tile_entry(p, found).sizes, found[2].sizes);
  EXPECT_EQ(tile_entry(p, found).gain, 1);
  found[0].sure_gain = 1.05;
  EXPECT_EQ(tile_entry(p, found).sizes, found[0].sizes);
  EXPECT_EQ(tile_entry(p, found).gain, 1.1);
}

// Every candidate has a time; a disturbance makes the runs of its range longer.
class FakeMachine {
 public:
  explicit FakeMachine(const FlashProblem& problem) : problem_(problem), candidates_(tile_candidates(problem)) {
    seconds_.assign(candidates_.size(), 1.0);
  }

  size_t candidates() const { return candidates_.size(); }
  double& seconds(size_t candidate) { return seconds_[candidate]; }
  // Runs [begin, end), counted from 0, take `factor` times as long; only those of `candidate` where one is named.
  void disturb(IndexRange runs, double factor, std::optional<size_t> candidate = {}) {
    disturbed_ = runs;
    factor_ = factor;
    only_ = candidate;
  }
  std::vector<TileCandidate> search(double seconds = 0) {
    order_.clear();
    return search_tiles(problem_, seconds, [&](const TileSizes& sizes) { return run(sizes); });
  }
  TileSizes winner() { return tile_entry(problem_, search()).sizes; }
  TileSizes sizes(size_t candidate) const { return candidates_[candidate].sizes; }
  const std::vector<size_t>& order() const { return order_; }  // of the last search, by candidate

 private:
  double run(const TileSizes& sizes) {
    const auto at = std::find_if(candidates_.begin(), candidates_.end(),
                                 [&](const TileCandidate& candidate) { return candidate.sizes == sizes; });
    const auto candidate = static_cast<size_t>(at - candidates_.begin());
    const auto place = static_cast<int64_t>(order_.size());
    order_.push_back(candidate);
    const bool slow = disturbed_.begin <= place && place < disturbed_.end && only_.value_or(candidate) == candidate;
    return seconds_[candidate] * (slow ? factor_ : 1);
  }

  FlashProblem problem_;
  std::vector<TileCandidate> candidates_;
  std::vector<double> seconds_;
  IndexRange disturbed_{0, 0};
  double factor_ = 1;
  std::optional<size_t> only_;
  std::vector<size_t> order_;
};

TEST(TileSearch, RunsTakeTurns) {
  FakeMachine machine(problem_of(500));
  const size_t count = machine.candidates();
  machine.seconds(3) = 0.9;
  const std::vector<TileCandidate> found = machine.search();
  EXPECT_EQ(found.size(), count);
  EXPECT_EQ(found[0].sizes, machine.sizes(3));
  EXPECT_NEAR(found[0].gain, 1 / 0.9, 1e-12);
  EXPECT_EQ(found[0].seconds, 0.9);
  // One run that does not count, then rounds that hold each candidate once.
  const std::vector<size_t>& order = machine.order();
  for (size_t round = 0; round < 3; ++round) {
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(1 + round * count);
    EXPECT_EQ(std::set<size_t>(begin, begin + static_cast<std::ptrdiff_t>(count)).size(), count) << round;
    EXPECT_EQ(*begin, round) << "another one begins";
  }
  EXPECT_LT(order.size(), 1 + 4 * count + 8) << "the others do not go on";
  const auto runs_of = [&](size_t candidate) { return std::count(order.begin(), order.end(), candidate); };
  EXPECT_GT(runs_of(3), 6);
  EXPECT_GT(runs_of(0), 6);
  EXPECT_EQ(runs_of(count - 1), 3);
  machine.search(5.0 * static_cast<double>(count));
  EXPECT_GE(runs_of(count - 1), 5) << "runs fill the seconds";
}

TEST(TileSearch, ADisturbedMachineDoesNotChangeTheWinner) {
  FakeMachine machine(problem_of(500));
  const auto count = static_cast<int64_t>(machine.candidates());
  const TileSizes table = machine.sizes(0);
  for (int64_t begin = 0; begin < 5 * count; ++begin) {
    machine.disturb({begin, begin + count - 1}, 3);  // one run of each
    EXPECT_EQ(machine.winner(), table) << begin;
  }
  machine.seconds(4) = 0.95;
  for (int64_t begin = 0; begin < 5 * count; ++begin) {
    machine.disturb({begin, begin + count - 1}, 3);
    EXPECT_EQ(machine.winner(), machine.sizes(4)) << begin;
  }
}

// Runs that scatter by more than candidates differ decide nothing.
TEST(TileSearch, NoiseKeepsTheTable) {
  const FlashProblem p = problem_of(500);
  constexpr int kSearches = 100;
  int kept = 0, taken_in = 0;
  for (uint64_t state = 1, search = 0; search < kSearches; ++search) {
    const auto found = search_tiles(p, 0, [&](const TileSizes&) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return 1 + static_cast<double>(state >> 40) * 0x1p-24;
    });
    kept += tile_entry(p, found).gain == 1 ? 1 : 0;
    taken_in += found.front().gain > 1.01 ? 1 : 0;
  }
  EXPECT_GT(kept, kSearches * 3 / 4);
  EXPECT_GT(taken_in, kSearches * 3 / 4) << "what the median alone would say";
}

TEST(TileSearch, AGainAboveTwoIsMeasuredAgain) {
  FakeMachine machine(problem_of(500));
  for (const size_t finalist : {1, 2, 3}) machine.seconds(finalist) = 0.995;  // within the scatter
  machine.search();
  const auto once = static_cast<int64_t>(machine.order().size());
  machine.disturb({0, once}, 3, 0);  // the table's sizes, as long as all are measured once
  EXPECT_EQ(machine.winner(), machine.sizes(0));
  EXPECT_EQ(static_cast<int64_t>(machine.order().size()), 2 * once);
  machine.disturb({0, 3 * once}, 3, 0);  // what repeats itself is believed
  EXPECT_NEAR(machine.search()[0].gain, 3 / 0.995, 1e-12);
  EXPECT_EQ(static_cast<int64_t>(machine.order().size()), 2 * once);
  machine.disturb({0, 3 * once}, 1.9, 0);
  EXPECT_NEAR(machine.search()[0].gain, 1.9 / 0.995, 1e-12);
  EXPECT_EQ(static_cast<int64_t>(machine.order().size()), once);
}

TEST(TileSearch, TimesTheKernelAndRemembers) {
  const TestFolder folder;
  const TileCache cache(folder / "tiles.json");
  const FlashProblem p = problem_of(300);
  Stream stream(2);
  EXPECT_EQ(tuned_tiles(p, stream, cache, WhenUnknown::kTable), TileSizes{});
  EXPECT_FALSE(std::filesystem::exists(cache.file()));
  KernelTimer kernel(p, stream);
  const double seconds = kernel.time({128, 128});
  EXPECT_GT(seconds, 0);
  EXPECT_LT(seconds, 100);
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
  EXPECT_GT(KernelTimer(p, stream).time({}), 0);
}

TEST(TileSearch, NothingToSearchForInTheScalarImplementation) {
  FlashProblem p = problem_of(30);
  p.implementation = "scalar";
  Stream stream(1);
  EXPECT_TRUE(tile_candidates(p).empty());
  EXPECT_EQ(tuned_tiles(p, stream, TileCache({}), WhenUnknown::kSearch), TileSizes{});
  EXPECT_THAT(error_of([&] { search_tiles(p, 0, [](const TileSizes&) { return 1.0; }); }),
              HasSubstr("'scalar' has no tiles"));
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
