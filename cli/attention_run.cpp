#include "cli/attention_run.h"

#include "base/error.h"
#include "cli/attention_data.h"
#include "cli/interrupt.h"
#include "parallel/shards.h"

namespace zoetrope::cli {
namespace {

void fill(const AttentionRun& run, comm::Communicator& world, Stream& stream) {
  const bench::AttentionData& data = run.data;
  const IndexRange own = parallel::token_shard(data.query_tokens(), world.size(), world.rank());
  RandomPart part{own, data.cross() ? IndexRange{0, data.key_tokens()} : own};
  // Replicated keys of one process are filled once; rank 0 of several processes needs all, to compare.
  if (run.shared && data.cross() && world.rank() != 0) part.keys = {};
  if (!run.shared && run.options.reference && world.rank() == 0) {
    part = {{0, data.query_tokens()}, {0, data.key_tokens()}};
  }
  {
    const trace::Span span(stream.lane(), "random data");
    fill_random(data, run.options.seed, part, stream.team());
  }
  world.barrier();
}

// One choice of all ranks. With keys of their own nothing is sent, whatever the strategy.
std::optional<pipeline::AutoPlan> choose(const AttentionRun& run, comm::Communicator& world, float scale) {
  if (run.data.cross()) return std::nullopt;
  const AttentionOptions& o = run.options;
  const pipeline::Job job = pipeline::job_of(world, o.threads);
  pipeline::AutoPlan planned = pipeline::agreed_plan(world, [&](const auto& heartbeat) {
    return pipeline::choose_attention(bench::problem_of(run.data, scale), o.strategy, o.hardware, job, heartbeat);
  });
  if (!o.implementation.empty() && o.implementation != "auto")
    planned.notes.push_back("its figures are those of the fastest kernel, not of implementation=" + o.implementation);
  return planned;
}

}  // namespace

AttentionMeasurement run_attention(const AttentionRun& run, comm::Communicator& world) {
  Stream stream(run.threads, {run.trace, world.rank(), trace::kComputeLane});
  if (run.options.input.empty()) fill(run, world, stream);
  const auto scale = static_cast<float>(run.options.scale.value_or(0));
  AttentionMeasurement result;
  result.planned = choose(run, world, scale);
  attention::Strategy strategy = strategy_of(run.options, world.size(), run.data.q.extent(2));
  if (result.planned) strategy.layout = parallel::ContextRequest::exactly(result.planned->layout.context);
  bench::AttentionRank rank(world, stream, run.data, run.o, strategy, scale, run.log_sum_exp);
  // A trace of a thousand runs is of no use to anybody.
  static_cast<bench::AttentionMeasurement&>(result) = rank.time(run.options.repeat, run.trace != nullptr, [] {
    if (interrupted()) fail("interrupted");
  });
  result.ranks = world.size();
  result.threads = run.threads;
  return result;
}

}  // namespace zoetrope::cli
