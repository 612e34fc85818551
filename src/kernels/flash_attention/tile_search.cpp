#include "kernels/flash_attention/tile_search.h"

#include <algorithm>
#include <chrono>
#include <limits>

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
constexpr int kLeastTurns = 3;
constexpr int kFinalTurns = 6;
constexpr size_t kFinalists = 3;

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

struct Data {
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
    candidates.push_back({sizes, std::numeric_limits<double>::infinity(), candidates.empty()});
  };
  add({});
  for (const int64_t query : kQuerySizes) {
    for (const int64_t keys : kKeySizes) add({query, keys});
  }
  return candidates;
}

std::vector<TileCandidate> search_tiles(const FlashProblem& problem, Stream& stream, double seconds) {
  std::vector<TileCandidate> candidates = tile_candidates(problem);
  if (candidates.empty()) {
    fail("implementation '{}' has no tiles to search for", FlashAttention(problem).implementation());
  }
  FlashProblem timed = timed_problem(problem, stream.team().size());
  const Data data(timed);
  KeyBlock block;
  block.k = data.k;
  block.v = data.v;
  const auto take_turn = [&](TileCandidate& candidate) {
    timed.tiles = candidate.sizes;
    const FlashAttention attention(timed);
    const double start = now();
    attention.attend(stream, data.q, block, data.o);
    candidate.seconds = std::min(candidate.seconds, now() - start);
  };
  const auto by_time = [](const TileCandidate& x, const TileCandidate& y) { return x.seconds < y.seconds; };
  const double begin = now();
  for (int turn = 0; turn < kLeastTurns || now() - begin < seconds; ++turn) {
    for (TileCandidate& candidate : candidates) take_turn(candidate);
  }
  // The best go on, with the table's sizes: a few turns that a busy machine disturbed must not decide.
  std::sort(candidates.begin(), candidates.end(), by_time);
  for (int turn = 0; turn < kFinalTurns; ++turn) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (i < kFinalists || candidates[i].table) take_turn(candidates[i]);
    }
  }
  std::sort(candidates.begin(), candidates.end(), by_time);
  return candidates;
}

TileEntry tile_entry(const FlashProblem& problem, const std::vector<TileCandidate>& found) {
  const auto table = std::find_if(found.begin(), found.end(), [](const TileCandidate& c) { return c.table; });
  ZT_CHECK(table != found.end());
  const TileCandidate& best = table->seconds > kWorthIt * found.front().seconds ? found.front() : *table;
  return {tile_key(problem), best.sizes, table->seconds / best.seconds};
}

TileSizes tuned_tiles(const FlashProblem& problem, Stream& stream, const TileCache& cache, WhenUnknown when) {
  const TileKey key = tile_key(problem);
  if (vector_shape(key.implementation) == nullptr) return {};
  if (const auto entry = cache.find(key)) return entry->sizes;
  if (when == WhenUnknown::kTable || problem.query_tokens == 0 || problem.key_tokens == 0) return {};
  const TileCacheLock lock(cache);
  if (const auto entry = cache.find(key)) return entry->sizes;  // another rank was first
  const TileEntry entry = tile_entry(problem, search_tiles(problem, stream, kSecondsOnFirstUse));
  cache.remember(entry);
  return entry.sizes;
}

}  // namespace zoetrope::kernels
