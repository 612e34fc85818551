#include "bench/attention_run.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "attention/counters.h"
#include "attention/plan.h"
#include "base/error.h"
#include "parallel/shards.h"
#include "trace/trace.h"

namespace zoetrope::bench {

attention::Problem problem_of(const AttentionData& data, float scale) {
  attention::Problem problem;
  problem.batch = data.q.extent(0);
  problem.tokens = data.query_tokens();
  problem.heads = data.q.extent(2);
  problem.head_dim = data.q.extent(3);
  problem.dtype = data.q.dtype();
  problem.scale = scale;
  problem.mask = static_cast<attention::MaskKind>(data.mask_kind());
  if (data.cross()) problem.key_tokens = data.key_tokens();
  return problem;
}

AttentionRank::AttentionRank(comm::Communicator& world, Stream& stream, const AttentionData& data, const TensorView& o,
                             const attention::Strategy& strategy, float scale, const TensorView& log_sum_exp)
    : world_(world),
      stream_(stream),
      data_(data),
      o_(o),
      log_sum_exp_(log_sum_exp),
      attention_(attention::plan(
          [&] {
            attention::Problem problem = problem_of(data, scale);
            problem.log_sum_exp = static_cast<bool>(log_sum_exp);
            return problem;
          }(),
          strategy, world, stream)),
      own_(attention_.tokens()),
      own_keys_(data.cross() ? IndexRange{0, data.key_tokens()} : own_) {}

void AttentionRank::run(const char* span) {
  const trace::Span recorded(stream_.lane(), span);
  attention_.run(data_.q.slice(1, own_.begin, own_.end), data_.k.slice(1, own_keys_.begin, own_keys_.end),
                 data_.v.slice(1, own_keys_.begin, own_keys_.end), {data_.key_lengths, data_.key_mask},
                 o_.slice(1, own_.begin, own_.end),
                 log_sum_exp_ ? log_sum_exp_.slice(1, own_.begin, own_.end) : TensorView{});
}

// The kernel of the first rank that has one: a rank without heads or tokens has none.
std::string AttentionRank::common_kernel() {
  using Name = std::array<char, 32>;
  Name mine{};
  const std::string_view kernel = attention_.kernel();
  ZT_CHECK(kernel.size() < mine.size());
  std::copy(kernel.begin(), kernel.end(), mine.begin());
  std::vector<Name> all(static_cast<size_t>(world_.size()));
  world_.all_gather(&mine, all.data(), sizeof mine, "kernels");
  for (const Name& name : all) {
    if (std::strcmp(name.data(), "none") != 0) return name.data();
  }
  return mine.data();
}

// The work of all ranks over the time from the first one's begin to the last one's end: with more threads than cores
// their windows hardly overlap, and the sum of their rates is more than the cores can do.
double AttentionRank::peak_window(Isa isa, double seconds) {
  world_.barrier();
  const double begin = wall_seconds();
  const trace::Span span(stream_.lane(), "peak");
  const double flop = world_.all_reduce_sum(measure_peak(isa, stream_.team(), seconds).flop);  // all have ended
  return flop / world_.all_reduce_max(wall_seconds() - begin);
}

// `runs` runs, timed together.
void AttentionRank::repeat(int64_t runs, const char* span, AttentionMeasurement& result) {
  attention_.reset_counters();
  world_.barrier();
  const double begin = wall_seconds();
  for (int64_t i = 0; i < runs; ++i) run(span);
  const double own = wall_seconds() - begin;
  const attention::Counters counters = attention_.counters();
  const auto each = static_cast<double>(runs);
  const auto sum = [&](int64_t count) {
    return static_cast<int64_t>(std::llround(world_.all_reduce_sum(static_cast<double>(count) / each)));
  };
  result.seconds.push_back(world_.all_reduce_max(own) / each);
  const attention::Counters::Traffic traffic = attention::traffic(counters);
  result.wait_seconds.push_back(world_.all_reduce_max(traffic.wait_seconds) / each);
  result.bytes_sent = sum(traffic.bytes_sent);
  result.bytes_copied = sum(counters.bytes_copied);
  result.tiles_fixed = sum(counters.tiles_fixed);
  result.tiles_online = sum(counters.tiles_online);
  result.key_rounding = world_.all_reduce_max(counters.key_rounding);
  result.value_rounding = world_.all_reduce_max(counters.value_rounding);
  result.heads_int8 = sum(counters.heads_int8);
  result.heads_as_computed = sum(counters.heads_as_computed);
  result.int8_error = world_.all_reduce_max(counters.int8_error);
}

AttentionMeasurement AttentionRank::time(int64_t repeats, bool single_runs, const std::function<void()>& at_repeat) {
  AttentionMeasurement result, warm_up;
  result.problem = attention_.problem();
  result.layout = attention_.layout();
  result.softmax = attention_.softmax();
  result.implementation = common_kernel();
  result.flop = data_.flop();
  const PairedOptions paired;
  const auto timed = [&](int64_t runs, const char* span, AttentionMeasurement& into) {
    if (at_repeat) at_repeat();
    repeat(runs, span, into);
  };
  // The first run also allocates pages; if it is short, the next ones show how many runs fill a window.
  int64_t runs = 1;
  for (int round = 0; round < 3; ++round) {
    timed(runs, "warm-up", warm_up);
    if (!single_runs) runs = static_cast<int64_t>(std::ceil(paired.window / std::max(1e-9, warm_up.seconds.back())));
    if (runs == 1) break;
  }
  const double window =
      std::clamp(warm_up.seconds.back() * static_cast<double>(runs), paired.window, paired.window_limit);
  const Isa isa = isa_of_kernel(result.implementation);
  double before = peak_window(isa, window);
  for (int64_t i = 0; i < repeats; ++i) {
    timed(runs, "attention", result);
    const double after = peak_window(isa, window);
    result.peak_flops.push_back((before + after) / 2);
    before = after;
  }
  return result;
}

void gather_output(const TensorView& o, const parallel::ContextLayout& layout, comm::Communicator& world) {
  std::vector<comm::Segment> sends, receives;
  const auto add = [&](std::vector<comm::Segment>& segments, int owner, int peer) {
    const IndexRange tokens = parallel::token_shard(o.extent(1), layout, owner);
    for (int64_t b = 0; b < o.extent(0); ++b) {
      const TensorView piece = o.select(0, b).slice(0, tokens.begin, tokens.end);
      segments.push_back({peer, piece.raw(), piece.bytes()});
    }
  };
  if (world.rank() != 0) add(sends, world.rank(), 0);
  for (int peer = 1; world.rank() == 0 && peer < world.size(); ++peer) add(receives, peer, peer);
  world.exchange(sends, receives, "gather o").wait();
}

}  // namespace zoetrope::bench
