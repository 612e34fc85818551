// Ring attention over four ranks that are threads of this program: every rank owns a quarter of the sequence, K and V
// blocks go round, and the result is what one rank computes alone.
#include <zoetrope/attention.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace zoetrope;

constexpr int64_t kTokens = 1001, kHeads = 3, kHeadDim = 64, kRow = kHeads * kHeadDim;

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> q(kTokens * kRow), k(q.size()), v(q.size()), alone(q.size()), together(q.size());
  for (auto* values : {&q, &k, &v}) {
    for (float& value : *values) value = normal(random);
  }

  // The rows [begin, end) of a [1, tokens, heads, head_dim] tensor that the caller owns.
  const auto rows = [](std::vector<float>& values, IndexRange range) {
    return TensorView(values.data() + range.begin * kRow, DType::kF32, {1, range.size(), kHeads, kHeadDim});
  };
  const auto attend = [&](int ranks, std::vector<float>& out) {
    comm::run_ranks(ranks, [&](comm::Communicator& world) {
      attention::Strategy strategy;
      strategy.layout.ring = world.size();
      const attention::Problem problem{.tokens = kTokens, .heads = kHeads, .head_dim = kHeadDim};
      attention::ContextAttention attention = attention::plan(problem, strategy, world, /*threads=*/1);
      const IndexRange mine = attention.tokens();
      attention.run(rows(q, mine), rows(k, mine), rows(v, mine), {}, rows(out, mine));
      std::printf("rank %d of %d: tokens %lld to %lld, sent %lld bytes\n", world.rank(), world.size(),
                  static_cast<long long>(mine.begin), static_cast<long long>(mine.end),
                  static_cast<long long>(attention.counters().ring.bytes_sent));
    });
  };
  attend(1, alone);
  attend(4, together);

  double difference = 0, norm = 0;
  for (size_t i = 0; i < alone.size(); ++i) {
    difference += std::pow(together[i] - alone[i], 2);
    norm += std::pow(alone[i], 2);
  }
  const double relative = std::sqrt(difference / norm);
  std::printf("relative L2 of four ranks against one: %.2g\n", relative);
  return relative < 1e-5 ? 0 : 1;
}
