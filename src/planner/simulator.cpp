// Steps and runs from one layer, plus embedding, projection and the gather of the velocity.
#include "planner/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "base/error.h"
#include "parallel/shards.h"
#include "planner/layer_walk.h"
#include "planner/weight_wait.h"

namespace zoetrope::planner {
namespace {

Breakdown times(const Breakdown& part, double count) {
  Breakdown all = part;
  for (const BreakdownPart& part_of : kBreakdownParts) all.*part_of.seconds *= count;
  return all;
}

// Adds a part that takes ranks different times and ends with a synchronisation. Returns the longest.
double add_together(std::vector<Breakdown>& ranks, const std::vector<double>& seconds, double Breakdown::*part) {
  const double longest = *std::max_element(seconds.begin(), seconds.end());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ranks[rank].*part += seconds[rank];
    ranks[rank].idle += longest - seconds[rank];
  }
  return longest;
}

// Patch embedding and projection, once per forward pass.
std::vector<double> ends_of_forward(const Work& work, const HardwareProfile& hardware,
                                    const Configuration& configuration) {
  const parallel::ParallelLayout& layout = configuration.layout;
  const Prices prices(work, hardware, configuration);
  const parallel::ContextLayout sequence = layout.of_sequence();
  std::vector<double> seconds;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    const int64_t tokens =
        parallel::token_shard(work.tokens, sequence, sequence.ranks() > 1 ? layout.context_index(rank) : 0).size();
    seconds.push_back(prices.gemm(work.ends_flop, tokens, work.batch(layout.data)) / hardware.speed(rank));
  }
  return seconds;
}

// As Denoiser::gather() does it: the tokens of all context ranks, one branch after the other, then the branches of all
// data ranks. Every rank sends its part to all others; all parts count as the largest. Ranks that share the layers each
// gather the same.
std::vector<double> gather_velocity(const Work& work, const HardwareProfile& hardware,
                                    const parallel::ParallelLayout& layout, const Routes& routes) {
  const int context = layout.context.ranks(), ranks = layout.ranks();
  const int64_t batch = work.batch(layout.data);
  Wires wires(routes, static_cast<int>(hardware.links.size()), ranks);
  std::vector<double> now(static_cast<size_t>(ranks), 0.0);
  if (work.latent_bytes == 0) return now;  // `zoetrope attention` has none, and no latency for it
  const auto gather = [&](const std::vector<Routes::Group>& groups) {
    const std::vector<Arrival> arrivals = wires.gather(groups, now);
    for (size_t rank = 0; rank < now.size(); ++rank) now[rank] = arrivals[rank].end;
  };
  if (layout.sharded && context > 1) {
    // tokens × latent_bytes / work.tokens, without that product: the longest videos' is beyond an int64_t.
    const int64_t tokens = parallel::largest_token_shard(work.tokens, layout.context);
    const int64_t part =
        tokens * (work.latent_bytes / work.tokens) + tokens * (work.latent_bytes % work.tokens) / work.tokens;
    std::vector<Routes::Group> groups(static_cast<size_t>(layout.data * layout.tensor), {{}, part});
    for (int rank = 0; rank < ranks; ++rank) {
      const int group = layout.data_index(rank) * layout.tensor + layout.tensor_index(rank);
      groups[static_cast<size_t>(group)].devices.push_back(rank);
    }
    for (int64_t branch = 0; branch < batch; ++branch) gather(groups);
  }
  if (layout.data > 1) {
    const int places = context * layout.tensor;
    std::vector<Routes::Group> groups(static_cast<size_t>(places), {{}, work.latent_bytes * batch});
    for (int rank = 0; rank < ranks; ++rank) groups[static_cast<size_t>(rank % places)].devices.push_back(rank);
    gather(groups);
  }
  return now;
}

// Every weight is used once for few rows, so reading them takes longest unless there are many prompts. Each rank reads
// from memory and computes its part; from files each host reads the parts of its ranks, for each of its runs.
double text_seconds(const Work& work, const HardwareProfile& hardware, int ranks, int runs_of_host) {
  const ComputeFigures& compute = hardware.compute(work.text_element_bytes);
  const auto rows = static_cast<double>(work.text_rows * work.batch(1));
  const double memory = static_cast<double>(work.text_weights.count()) / hardware.memory_bandwidth;
  const double product = work.text_flop / (compute.gemm.at(rows) * compute.peak);
  const double of_host = static_cast<double>(std::min(ranks, std::max(1, hardware.devices_per_host))) / ranks;
  const double file = hardware.host_read > 0 ? static_cast<double>(work.text_read.count()) / hardware.host_read : 0;
  return std::max(file * of_host * runs_of_host, std::max(memory, product) / ranks);
}

// In float32, on one rank.
double image_seconds(const Work& work, const HardwareProfile& hardware) {
  constexpr int64_t kElement = 4;
  constexpr double kRows = 257;  // of one picture
  const ComputeFigures& compute = hardware.compute(kElement);
  return work.image_flop / (compute.gemm.at(kRows) * compute.peak);
}

std::string largest_level(const HardwareProfile& hardware, const std::vector<double>& seconds) {
  const auto largest = std::max_element(seconds.begin(), seconds.end());
  if (largest == seconds.end() || *largest <= 0) return {};
  return hardware.links[static_cast<size_t>(largest - seconds.begin())].name;
}

}  // namespace

double Breakdown::total() const {
  double sum = 0;
  for (const BreakdownPart& part : kBreakdownParts) sum += this->*part.seconds;
  return sum;
}

std::string StepPrediction::limited_by() const {
  const Breakdown& all = critical();
  const auto* largest = std::max_element(std::begin(kBreakdownParts), std::end(kBreakdownParts),
                                         [&](const auto& a, const auto& b) { return all.*a.seconds < all.*b.seconds; });
  const std::string level = largest->seconds == &Breakdown::exposed_exchange ? exchange_level
                            : largest->seconds == &Breakdown::exposed_ring   ? ring_level
                            : largest->seconds == &Breakdown::tensor         ? tensor_level
                            : largest->seconds == &Breakdown::weights        ? weights_level
                                                                             : std::string();
  return fmt::format("{}{} ({:.0f} %)", largest->name, level.empty() ? "" : fmt::format(" over '{}'", level),
                     seconds > 0 ? 100 * all.*largest->seconds / seconds : 0.0);
}

StepPrediction simulate_step(const Work& work, const HardwareProfile& hardware, const Configuration& configuration,
                             Timeline timeline) {
  const parallel::ParallelLayout& layout = configuration.layout;
  ZT_CHECK(hardware.devices >= layout.ranks(), "{} ranks on {} devices", layout.ranks(), hardware.devices);
  ZT_CHECK(layout.data >= 1 && work.branches % layout.data == 0, "{} branches over data {}", work.branches,
           layout.data);
  ZT_CHECK(layout.tensor >= 1 && work.heads % layout.tensor == 0, "{} heads over {} tensor ranks", work.heads,
           layout.tensor);
  ZT_CHECK(work.tokens > 0 && work.heads / layout.tensor >= layout.context.ulysses,
           "{} tokens, {} heads over {} tensor ranks and Ulysses {}", work.tokens, work.heads, layout.tensor,
           layout.context.ulysses);
  const Routes routes(hardware);
  LayerWalk walk(work, hardware, configuration, routes, timeline);
  walk.run();

  StepPrediction step;
  const auto layers = static_cast<double>(work.layers);
  step.layer_seconds = walk.seconds();
  for (const Breakdown& part : walk.parts()) step.ranks.push_back(times(part, layers));
  step.seconds = layers * walk.seconds();
  const WeightWait weights = wait_for_weights(work, hardware, layout, routes, walk);
  step.seconds += add_together(step.ranks, weights.seconds, &Breakdown::weights);
  step.weights_level = weights.level;
  step.seconds += add_together(step.ranks, ends_of_forward(work, hardware, configuration), &Breakdown::linear);
  step.seconds += add_together(step.ranks, gather_velocity(work, hardware, layout, routes), &Breakdown::gather);
  const auto slowest = std::min_element(step.ranks.begin(), step.ranks.end(),
                                        [](const Breakdown& a, const Breakdown& b) { return a.idle < b.idle; });
  step.slowest = static_cast<int>(slowest - step.ranks.begin());
  step.exchange_level = largest_level(hardware, walk.exposed_exchange());
  step.ring_level = largest_level(hardware, walk.exposed_ring());
  step.tensor_level = largest_level(hardware, walk.exposed_tensor());
  step.layer = walk.take_spans();
  return step;
}

RunPrediction simulate_run(const Work& work, const HardwareProfile& hardware, const Configuration& configuration,
                           Timeline timeline) {
  const parallel::ParallelLayout& layout = configuration.layout;
  RunPrediction run;
  run.step = simulate_step(work, hardware, configuration, timeline);
  run.denoise = static_cast<double>(work.steps) * run.step.seconds;
  const int runs = work.runs_of_host(layout.ranks(), hardware.devices_per_host);
  if (hardware.host_read > 0) run.load = runs * static_cast<double>(work.weights_read.count()) / hardware.host_read;
  run.text_encoder = text_seconds(work, hardware, layout.text_ranks, runs);
  run.conditions = image_seconds(work, hardware);
  if (work.vae_rows > 0) {
    const ComputeFigures& vae = hardware.compute(work.vae_element_bytes);
    const double share =
        static_cast<double>(ceil_div(work.vae_rows, layout.vae_ranks)) / static_cast<double>(work.vae_rows);
    const double rate = vae.convolution * vae.peak;
    run.vae = work.vae_flop * share / rate;
    run.conditions += work.condition_flop * share / rate;
  }
  return run;
}

void record_timeline(const StepPrediction& prediction, int64_t layers, trace::Trace& trace) {
  const auto origin = trace::Clock::now();
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto at = [&](double seconds) {
      const std::chrono::duration<double> since(static_cast<double>(layer) * prediction.layer_seconds + seconds);
      return origin + std::chrono::duration_cast<trace::Clock::duration>(since);
    };
    for (const TimelineSpan& span : prediction.layer) {
      if (span.lane == TimelineSpan::Lane::kTransfer) {
        trace.record_transfer(span.name, span.rank, at(span.begin), at(span.end), span.bytes);
      } else {
        trace.record(span.name, span.rank,
                     span.lane == TimelineSpan::Lane::kWait ? trace::kWaitLane : trace::kComputeLane, at(span.begin),
                     at(span.end), span.flop);
      }
    }
  }
}

}  // namespace zoetrope::planner
