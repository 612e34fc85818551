#include "cli/attention_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "bench/peak.h"
#include "bench/statistics.h"
#include "cli/interrupt.h"
#include "device/stream.h"
#include "parallel/shards.h"

namespace zoetrope::cli {
namespace {

class RankRun {
 public:
  RankRun(const AttentionRun& run, comm::Communicator& world)
      : run_(run), world_(world), stream_(run.threads, {run.trace, world.rank(), trace::kComputeLane}) {
    const int64_t tokens = run.data.query_tokens();
    own_ = parallel::token_shard(tokens, world.size(), world.rank());
    own_keys_ = run.data.cross() ? IndexRange{0, run.data.key_tokens()} : own_;
    if (run.data.random) fill();
  }

  AttentionMeasurement measure();

 private:
  void fill();
  attention::Problem problem() const;
  std::optional<pipeline::AutoPlan> choose();
  std::string common_implementation(const std::string& mine);
  double peak_window(bench::Isa isa, double seconds);
  struct Plan {
    int64_t runs;   // of a repeat
    double window;  // seconds that the peak is measured for
  };
  Plan warm_up(attention::ContextAttention& attention, const bench::PairedOptions& paired);
  void repeat(attention::ContextAttention& attention, int64_t runs, const char* name, AttentionMeasurement& result);
  void run_once(attention::ContextAttention& attention, const char* name);

  const AttentionRun& run_;
  comm::Communicator& world_;
  Stream stream_;
  IndexRange own_, own_keys_;  // tokens
};

void RankRun::fill() {
  RandomPart part{own_, own_keys_};
  // Replicated keys of one process are filled once; rank 0 of several processes needs all, to compare.
  if (run_.shared && run_.data.cross() && world_.rank() != 0) part.keys = {};
  if (!run_.shared && run_.options.reference && world_.rank() == 0) {
    part = {{0, run_.data.query_tokens()}, {0, run_.data.key_tokens()}};
  }
  {
    const trace::Span span(stream_.lane(), "random data");
    fill_random(run_.data, run_.options.seed, part, stream_.team());
  }
  world_.barrier();
}

attention::Problem RankRun::problem() const {
  const TensorView& q = run_.data.q;
  attention::Problem problem;
  problem.batch = q.extent(0);
  problem.tokens = q.extent(1);
  problem.heads = q.extent(2);
  problem.head_dim = q.extent(3);
  problem.dtype = q.dtype();
  problem.scale = static_cast<float>(run_.options.scale.value_or(0));
  problem.mask = run_.data.mask_kind();
  if (run_.data.cross()) problem.key_tokens = run_.data.key_tokens();
  return problem;
}

// A rank without tokens has no kernel: that of the first rank that has one.
std::string RankRun::common_implementation(const std::string& mine) {
  using Name = std::array<char, 32>;
  Name name{};
  ZT_CHECK(mine.size() < name.size());
  std::copy(mine.begin(), mine.end(), name.begin());
  std::vector<Name> all(static_cast<size_t>(world_.size()));
  world_.all_gather(&name, all.data(), sizeof name, "implementations");
  for (const Name& candidate : all) {
    if (std::strcmp(candidate.data(), "none") != 0) return candidate.data();
  }
  return mine;
}

// On all ranks at the same time, as they compute; the sum of all.
double RankRun::peak_window(bench::Isa isa, double seconds) {
  world_.barrier();
  const trace::Span span(stream_.lane(), "peak");
  return world_.all_reduce_sum(bench::measure_peak(isa, stream_.team(), seconds).flops);
}

void RankRun::run_once(attention::ContextAttention& attention, const char* name) {
  const AttentionData& data = run_.data;
  const trace::Span span(stream_.lane(), name);
  attention.run(data.q.slice(1, own_.begin, own_.end), data.k.slice(1, own_keys_.begin, own_keys_.end),
                data.v.slice(1, own_keys_.begin, own_keys_.end), data.mask(), run_.o.slice(1, own_.begin, own_.end));
}

// `runs` runs, timed together.
void RankRun::repeat(attention::ContextAttention& attention, int64_t runs, const char* name,
                     AttentionMeasurement& result) {
  if (interrupted()) fail("interrupted");
  attention.reset_counters();
  world_.barrier();
  const double begin = bench::wall_seconds();
  for (int64_t i = 0; i < runs; ++i) run_once(attention, name);
  const double own = bench::wall_seconds() - begin;
  const attention::Counters counters = attention.counters();
  const auto each = static_cast<double>(runs);
  const auto sum = [&](int64_t count) {
    return static_cast<int64_t>(std::llround(world_.all_reduce_sum(static_cast<double>(count) / each)));
  };
  result.seconds.push_back(world_.all_reduce_max(own) / each);
  result.wait_seconds.push_back(world_.all_reduce_max(counters.ulysses.wait_seconds + counters.ring.wait_seconds) /
                                each);
  result.bytes_sent = sum(counters.ulysses.bytes_sent + counters.ring.bytes_sent);
  result.tiles_fixed = sum(counters.tiles_fixed);
  result.tiles_online = sum(counters.tiles_online);
}

// The first run touches memory for the first time: where it is short, the next ones say how many fill a window.
RankRun::Plan RankRun::warm_up(attention::ContextAttention& attention, const bench::PairedOptions& paired) {
  AttentionMeasurement unused;
  int64_t runs = 1;
  for (int round = 0; round < 3; ++round) {
    repeat(attention, runs, "warm-up", unused);
    const double once = std::max(1e-9, unused.seconds.back());
    // A trace of a thousand runs is of no use to anybody.
    if (run_.trace == nullptr) runs = static_cast<int64_t>(std::ceil(paired.window / once));
    if (runs == 1) break;
  }
  const double seconds = unused.seconds.back() * static_cast<double>(runs);
  return {runs, std::clamp(seconds, paired.window, paired.window_limit)};
}

// One choice of all ranks. With keys of their own nothing is sent, whatever the strategy.
std::optional<pipeline::AutoPlan> RankRun::choose() {
  if (run_.data.cross()) return std::nullopt;
  const AttentionOptions& o = run_.options;
  const pipeline::Job job = pipeline::job_of(world_, o.threads);
  pipeline::AutoPlan planned = pipeline::agreed_plan(world_, [&](const auto& heartbeat) {
    return pipeline::choose_attention(problem(), o.strategy, o.hardware, job, heartbeat);
  });
  if (!o.implementation.empty() && o.implementation != "auto")
    planned.notes.push_back("its figures are those of the fastest kernel, not of implementation=" + o.implementation);
  return planned;
}

AttentionMeasurement RankRun::measure() {
  AttentionMeasurement result;
  result.planned = choose();
  const attention::Strategy strategy = strategy_of(run_.options, world_.size(), run_.data.q.extent(2),
                                                   result.planned ? result.planned->choice : pipeline::RankChoice{});
  attention::ContextAttention attention = attention::plan(problem(), strategy, world_, stream_);
  result.problem = attention.problem();
  result.strategy = attention.strategy();
  result.implementation = common_implementation(attention.kernel());
  result.ranks = world_.size();
  result.threads = run_.threads;
  const attention::Problem& p = result.problem;
  result.flop = 4.0 * static_cast<double>(p.tokens) * static_cast<double>(p.heads) * static_cast<double>(p.head_dim) *
                static_cast<double>(run_.data.valid_keys());

  const bench::PairedOptions paired;
  const auto [runs, window] = warm_up(attention, paired);
  const bench::Isa isa = bench::isa_of_kernel(result.implementation);
  double before = peak_window(isa, window);
  for (int64_t i = 0; i < run_.options.repeat; ++i) {
    repeat(attention, runs, "attention", result);
    const double after = peak_window(isa, window);
    result.peak_flops.push_back((before + after) / 2);
    before = after;
  }
  return result;
}

}  // namespace

double AttentionMeasurement::seconds_min() const { return bench::minimum(seconds); }
double AttentionMeasurement::seconds_median() const { return bench::median(seconds); }
double AttentionMeasurement::median_peak_flops() const { return bench::median(peak_flops); }

AttentionMeasurement run_attention(const AttentionRun& run, comm::Communicator& world) {
  return RankRun(run, world).measure();
}

void gather_output(const AttentionRun& run, comm::Communicator& world) {
  if (run.shared || world.size() == 1) return;
  const auto pieces = [&](int owner, int peer) {
    const IndexRange tokens = parallel::token_shard(run.o.extent(1), world.size(), owner);
    std::vector<comm::Segment> segments;
    for (int64_t b = 0; b < run.o.extent(0); ++b) {
      const TensorView rows = run.o.select(0, b).slice(0, tokens.begin, tokens.end);
      segments.push_back({peer, rows.raw(), rows.bytes(), rows.device()});
    }
    return segments;
  };
  std::vector<comm::Segment> sends, receives;
  if (world.rank() != 0) sends = pieces(world.rank(), 0);
  for (int rank = 1; world.rank() == 0 && rank < world.size(); ++rank) {
    const std::vector<comm::Segment> from = pieces(rank, rank);
    receives.insert(receives.end(), from.begin(), from.end());
  }
  world.exchange(sends, receives, "gather o").wait();
}

}  // namespace zoetrope::cli
