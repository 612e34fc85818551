#include "bench/peak.h"

#include <algorithm>
#include <cmath>

#include "bench/statistics.h"

namespace zoetrope::bench {

Isa fastest_isa(DType dtype, ThreadTeam& team) {
  constexpr double kWindow = 0.05;
  Isa best = Isa::kAvx2;
  double most = 0;
  for (const Isa isa : all_isas()) {
    if (!isa_available(isa) || !multiplies(isa, dtype)) continue;
    const double flops = measure_peak(isa, team, kWindow).flops;
    if (flops > most) {
      most = flops;
      best = isa;
    }
  }
  return best;
}

std::vector<PairedRepeat> time_beside_peak(Isa isa, ThreadTeam& team, double flop, const PairedOptions& options,
                                           const std::function<void()>& run, const std::function<void()>& check) {
  const auto timed = [&run](int64_t count) {
    const double begin = wall_seconds();
    for (int64_t i = 0; i < count; ++i) run();
    return std::max(1e-9, (wall_seconds() - begin) / static_cast<double>(count));
  };
  double estimate = timed(1);
  if (check) check();
  // The first run also allocates pages; if it is short, the next ones show how many runs fill a window.
  for (int round = 0; round < 2 && estimate < options.window; ++round) {
    estimate = timed(static_cast<int64_t>(std::ceil(options.window / 4 / estimate)));
  }
  const int least = options.repeats > 0 ? options.repeats : estimate > 1 ? 3 : 5;
  const auto inner = static_cast<int64_t>(std::max(1.0, std::ceil(options.window / estimate)));
  const double window =
      std::clamp(estimate * static_cast<double>(inner), options.window, std::max(options.window, options.window_limit));
  std::vector<PairedRepeat> repeats;
  Peak before = measure_peak(isa, team, window);
  double spent = 0;
  while (static_cast<int>(repeats.size()) < least || spent < options.seconds) {
    PairedRepeat repeat;
    const double cpu = thread_cpu_seconds(), begin = wall_seconds();
    for (int64_t i = 0; i < inner; ++i) run();
    const double total = wall_seconds() - begin;
    spent += total;
    repeat.seconds = total / static_cast<double>(inner);
    repeat.cpu_seconds = (thread_cpu_seconds() - cpu) / static_cast<double>(inner);
    const Peak after = measure_peak(isa, team, window);
    repeat.peak = {(before.flops + after.flops) / 2, (before.cpu_flops + after.cpu_flops) / 2};
    repeat.fraction = flop / repeat.seconds / repeat.peak.flops;
    repeat.cpu_fraction = flop / repeat.cpu_seconds / repeat.peak.cpu_flops;
    repeats.push_back(repeat);
    before = after;
  }
  return repeats;
}

void set_times(Table& table, const std::vector<PairedRepeat>& repeats, double flop, int threads) {
  const std::vector<double> seconds = each(repeats, &PairedRepeat::seconds);
  const std::vector<double> fractions = each(repeats, &PairedRepeat::fraction);
  table.set("seconds_min", minimum(seconds));
  table.set("seconds_median", median(seconds));
  table.set("gflops", flop / minimum(seconds) * 1e-9);
  table.set("peak_gflops", median(each(repeats, [](const PairedRepeat& r) { return r.peak.flops; })) * 1e-9);
  table.set("fraction_min", minimum(fractions));
  table.set("fraction", median(fractions));
  table.set("fraction_max", maximum(fractions));
  if (threads == 1) table.set("cpu", median(each(repeats, &PairedRepeat::cpu_fraction)));
  table.set("repeats", static_cast<int64_t>(repeats.size()));
}

}  // namespace zoetrope::bench
