#include "kernels/flash_attention/tile_search.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "base/error.h"
#include "base/index_range.h"
#include "kernels/flash_attention/tile_size.h"
#include "kernels/flash_attention/vector_kernels.h"
#include "tensor/dispatch.h"

namespace zoetrope::kernels {
namespace {

// What lies outside lost everywhere (tile_size.h).
constexpr int64_t kQuerySizes[] = {128, 192, 256, 384, 512, 768};
constexpr int64_t kKeySizes[] = {128, 256, 512};
constexpr int64_t kRowsPerThread = 1536;  // two of the largest tiles
constexpr double kSecondsOnFirstUse = 1;
constexpr double kWorthIt = 1.01;
constexpr double kDoubtfulGain = 2;
constexpr int kLeastRounds = 3;
constexpr std::ptrdiff_t kFinalRounds = 8;
constexpr double kMedian = 0.5, kQuarter = 0.25;
constexpr std::ptrdiff_t kFinalists = 3;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The problem that is timed: enough rows for the team, one head where one is enough.
FlashProblem timed_problem(const FlashProblem& problem, int threads) {
  FlashProblem timed = problem;
  timed.query_tokens = std::min(problem.query_tokens, kRowsPerThread * threads);
  timed.batch = 1;
  timed.heads = problem.query_tokens >= kRowsPerThread * threads ? 1 : std::min<int64_t>(problem.heads, threads);
  timed.mask = MaskKind::kNone;
  timed.bias = false;
  return timed;
}

// What the other 1 − `share` of the values reach.
double quantile(std::vector<double> values, double share) {
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

// One measurement of all candidates, of which the first is the table's.
class Rounds {
 public:
  Rounds(const std::vector<TileCandidate>& candidates, const TimeTiles& time)
      : candidates_(candidates), time_(time), runs_(candidates.size()) {}

  std::vector<TileCandidate> measure(double seconds) {
    time_(candidates_[0].sizes);  // touches memory, loads code
    std::vector<size_t> order(candidates_.size());
    std::iota(order.begin(), order.end(), 0);
    const auto by_gain = [&](size_t x, size_t y) { return gain(x) > gain(y); };
    while (round_ < kLeastRounds || spent_ < seconds) run(order);
    std::stable_sort(order.begin(), order.end(), by_gain);
    // Only the best go on, with the table's sizes, and only they can win: few runs are easily disturbed.
    const auto rest = std::stable_partition(order.begin() + std::min(kFinalists, std::ssize(order)), order.end(),
                                            [](size_t candidate) { return candidate == 0; });
    const std::vector<size_t> others(rest, order.end());
    order.erase(rest, order.end());
    for (std::ptrdiff_t round = 0; round < kFinalRounds; ++round) run(order);
    std::stable_sort(order.begin(), order.end(), by_gain);
    order.insert(order.end(), others.begin(), others.end());
    std::vector<TileCandidate> found;
    for (const size_t candidate : order) {
      found.push_back(candidates_[candidate]);
      found.back().seconds = quantile(runs_[candidate].seconds, kMedian);
      found.back().gain = gain(candidate);
      const std::vector<double>& gains = runs_[candidate].gains;
      found.back().sure_gain =
          quantile({gains.end() - std::min(kFinalRounds, std::ssize(gains)), gains.end()}, kQuarter);
    }
    return found;
  }

 private:
  struct Runs {
    std::vector<double> seconds, gains;
  };

  double gain(size_t candidate) const { return quantile(runs_[candidate].gains, kMedian); }

  // Each once, beginning with another one every time.
  void run(const std::vector<size_t>& order) {
    for (size_t i = 0; i < order.size(); ++i) {
      const size_t candidate = order[(static_cast<size_t>(round_) + i) % order.size()];
      runs_[candidate].seconds.push_back(time_(candidates_[candidate].sizes));
      spent_ += runs_[candidate].seconds.back();
    }
    ++round_;
    for (const size_t candidate : order)
      runs_[candidate].gains.push_back(runs_[0].seconds.back() / runs_[candidate].seconds.back());
  }

  const std::vector<TileCandidate>& candidates_;
  const TimeTiles& time_;
  std::vector<Runs> runs_;
  double spent_ = 0;
  int round_ = 0;
};

}  // namespace

std::vector<TileCandidate> tile_candidates(const FlashProblem& problem) {
  std::vector<TileCandidate> candidates;
  const TileShape* base = vector_shape(FlashAttention(problem).implementation());
  if (base == nullptr) return candidates;
  const auto add = [&](const TileSizes& wanted) {
    const TileShape shape = with_tile_sizes(*base, wanted);
    const TileSizes sizes{shape.query_tile, shape.key_tile};
    for (const TileCandidate& other : candidates) {
      if (other.sizes == sizes) return;
    }
    candidates.push_back({sizes, candidates.empty()});
  };
  add({});
  for (const int64_t query : kQuerySizes) {
    for (const int64_t keys : kKeySizes) add({query, keys});
  }
  return candidates;
}

std::vector<TileCandidate> search_tiles(const FlashProblem& problem, double seconds, const TimeTiles& time) {
  const std::vector<TileCandidate> candidates = tile_candidates(problem);
  if (candidates.empty()) {
    fail("implementation '{}' has no tiles to search for", FlashAttention(problem).implementation());
  }
  std::vector<TileCandidate> found = Rounds(candidates, time).measure(seconds);
  if (found.front().gain > kDoubtfulGain) found = Rounds(candidates, time).measure(seconds);
  return found;
}

struct KernelTimer::Data {
  Tensor q, k, v, o;

  explicit Data(const FlashProblem& p)
      : q(p.dtype, {1, p.query_tokens, p.heads, p.head_dim}),
        k(p.dtype, {1, p.key_tokens, p.heads, p.head_dim}),
        v(p.dtype, {1, p.key_tokens, p.heads, p.head_dim}),
        o(p.dtype, {1, p.query_tokens, p.heads, p.head_dim}) {
    uint64_t state = 1;
    with_compute_type(p.dtype, "q", [&](auto tag) {
      using T = typename decltype(tag)::type;
      for (const Tensor* x : {&q, &k, &v}) {
        for (int64_t i = 0; i < x->size(); ++i) {
          state = state * 6364136223846793005u + 1442695040888963407u;
          x->data<T>()[i] = from_float<T>(static_cast<float>(state >> 40) * 0x1p-23f - 1.0f);
        }
      }
    });
  }
};

KernelTimer::KernelTimer(const FlashProblem& problem, Stream& stream)
    : problem_(timed_problem(problem, stream.team().size())),
      stream_(stream),
      data_(std::make_unique<Data>(problem_)) {}
KernelTimer::~KernelTimer() = default;

double KernelTimer::time(const TileSizes& sizes) {
  problem_.tiles = sizes;
  const FlashAttention attention(problem_);
  KeyBlock block;
  block.k = data_->k;
  block.v = data_->v;
  const double start = now();
  attention.attend(stream_, data_->q, block, data_->o);
  return now() - start;
}

TileEntry tile_entry(const FlashProblem& problem, const std::vector<TileCandidate>& found) {
  const auto table = std::find_if(found.begin(), found.end(), [](const TileCandidate& c) { return c.table; });
  ZT_CHECK(table != found.end());
  const TileCandidate& best = found.front().sure_gain > kWorthIt ? found.front() : *table;
  return {tile_key(problem), best.sizes, best.gain};
}

TileSizes tuned_tiles(const FlashProblem& problem, Stream& stream, const TileCache& cache, WhenUnknown when) {
  const TileKey key = tile_key(problem);
  if (vector_shape(key.implementation) == nullptr) return {};
  if (const auto entry = cache.find(key)) return entry->sizes;
  if (when == WhenUnknown::kTable || problem.query_tokens == 0 || problem.key_tokens == 0) return {};
  const TileCacheLock lock(cache);
  if (const auto entry = cache.find(key)) return entry->sizes;  // another rank was first
  KernelTimer kernel(problem, stream);
  const auto time = [&](const TileSizes& sizes) { return kernel.time(sizes); };
  const TileEntry entry = tile_entry(problem, search_tiles(problem, kSecondsOnFirstUse, time));
  cache.remember(entry);
  return entry.sizes;
}

}  // namespace zoetrope::kernels
