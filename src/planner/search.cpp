#include "planner/search.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/words.h"
#include "planner/search_space.h"

namespace zoetrope::planner {
namespace {

using parallel::ParallelLayout;

constexpr double kPercent = 100;
// Relative: the rounding error of equal sums.
constexpr double kRounding = 1e-9;

std::string percent(double share) {
  const double value = kPercent * share;
  return fmt::format("{:.{}f} %", value, value < 10 ? 1 : 0);
}

// The largest part of a step that is longer than in `best`, "ring +0.21 s a step".
std::string largest_increase(const StepPrediction& step, const StepPrediction& best) {
  const BreakdownPart* largest = nullptr;
  double most = 0;
  for (const BreakdownPart& part : kBreakdownParts) {
    const double more = step.critical().*part.seconds - best.critical().*part.seconds;
    if (more <= most) continue;
    most = more;
    largest = &part;
  }
  return largest == nullptr ? "" : fmt::format("{} +{:.3g} s a step", largest->name, most);
}

// The times of the VAE and of the conditions depend only on the ranks that share its frames, so that a step of one
// token is enough to predict them.
RunPrediction around_denoising(const Work& work, const HardwareProfile& hardware, int ranks) {
  Work one = work;
  one.tokens = one.layers = one.steps = 1;
  Configuration configuration;
  configuration.layout.vae_ranks = ranks;
  return simulate_run(one, hardware, configuration);
}

// One combination that was simulated; bounds of others follow from it.
struct Trial {
  Kernel kernel;
  Candidate candidate;
};

class Search {
 public:
  explicit Search(const Question& question)
      : q_(question),
        limit_(question.limit()),
        memory_(remembered(question.memory)),
        least_memory_(question.least_memory ? remembered(question.least_memory) : nullptr) {}

  Ranking run() {
    check_request(q_);
    if (q_.hardware.devices < q_.ranks) {
      fail(
          "hardware {} has {} for {} ranks, of which each takes one; plan for {} or fewer, or name a profile "
          "that has as many",
          q_.hardware.name, counted(q_.hardware.devices, "device"), q_.ranks, q_.hardware.devices);
    }
    try_splits();
    for (const Trial& base : bases_) vary(base);
    simplify();
    other_kernels();
    ranking_.left_out = left_out();
    find_fastest();
    other_vae_ranks();
    judge();
    add_illegal();
    if (ranking_.best() == nullptr) ranking_.least_that_fits = least_that_fits();
    return std::move(ranking_);
  }

 private:
  // ---- what one configuration costs ----

  Configuration configure(const ParallelLayout& split, const Kernel& kernel) {
    Configuration c{split, kernel.softmax, kernel.block_q, q_.block_kv.value_or(0)};
    c.layout.text_ranks = std::clamp(q_.request.text_ranks.value_or(split.ranks()), 1, split.ranks());
    c.layout.weight_shards = std::gcd(q_.request.weight_shards.value_or(1), split.ranks() / split.tensor);
    c.layout.vae_ranks = 1;
    c.layout.vae_ranks = best_vae(c);
    return c;
  }

  int ranks_here(const Configuration& c) const { return std::min(q_.ranks_here, c.layout.ranks()); }

  // The number of ranks that decodes fastest and fits; the one that needs the least memory if none fits. It depends
  // only on the number of ranks, and on the weights that a process keeps meanwhile.
  int best_vae(const Configuration& configuration) {
    const int ranks = configuration.layout.ranks();
    const std::pair key{ranks, configuration.layout.tensor};
    if (const auto known = vae_.find(key); known != vae_.end()) return known->second;
    const std::vector<int> counts = vae_ranks(q_, ranks);
    int best = counts.back();
    double fastest = std::numeric_limits<double>::infinity();
    for (const int count : counts) {
      if (counts.size() == 1) break;
      Configuration c = configuration;
      c.layout.vae_ranks = count;
      const double seconds = around_denoising(q_.work, q_.hardware, count).shared_rows();
      const MemoryPlan memory = memory_of(c);
      const Bytes most = std::max(memory.peak_of(kVae), memory.peak_of(kConditions));
      if (seconds >= fastest || most > limit_ * ranks_here(c)) continue;
      fastest = seconds;
      best = count;
    }
    return vae_[key] = best;
  }

  MemoryPlan memory_of(const Configuration& c) const { return memory_of(c.layout, c.softmax, ranks_here(c)); }
  MemoryPlan memory_of(const ParallelLayout& layout, parallel::Softmax softmax, int here) const {
    return memory_of(memory_, layout, softmax, here);
  }
  static MemoryPlan memory_of(const std::function<Workload(const ParallelLayout&, int)>& memory,
                              const ParallelLayout& layout, parallel::Softmax softmax, int here) {
    Workload workload = memory(layout, here);
    const int vae = workload.layout.vae_ranks;  // fewer where they cannot share
    workload.layout = layout;
    workload.layout.vae_ranks = vae;
    workload.softmax = softmax;
    workload.ranks_here = here;
    return memory_model(workload);
  }

  Candidate priced(const Configuration& c) const {
    Candidate candidate;
    candidate.configuration = c;
    candidate.time = simulate_run(q_.work, q_.hardware, c);
    finish(candidate);
    return candidate;
  }

  void finish(Candidate& candidate) const {
    const Configuration& c = candidate.configuration;
    candidate.ranks_here = ranks_here(c);
    candidate.memory = memory_of(c);
    candidate.bytes_per_rank = candidate.memory.peak().total() / candidate.ranks_here;
    candidate.complexity = c.complexity(q_.hardware);
    candidate.value = objective_value(q_, candidate.run_seconds(), candidate.ranks());
  }

  bool fits(const Candidate& candidate) const { return candidate.bytes_per_rank <= limit_; }

  // ---- what is tried ----

  // Few ranks are simulated in a millisecond or two, so nothing is pruned but what divides layers, which is rarely
  // fast.
  static constexpr int kAlwaysSimulated = 64;

  void try_splits() {
    std::vector<std::pair<Candidate, Trial>> splits;  // with its bound
    for (const int ranks : run_sizes(q_)) {
      for (const ParallelLayout& split : legal_splits(q_, ranks)) {
        Trial trial{kernels(q_, split).front(), {}};
        trial.candidate.configuration = configure(split, trial.kernel);
        Candidate bound = bounded(trial.candidate.configuration);
        splits.emplace_back(std::move(bound), std::move(trial));
      }
    }
    std::stable_sort(splits.begin(), splits.end(),
                     [](const auto& a, const auto& b) { return a.first.value < b.first.value; });
    for (auto& [bound, trial] : splits) {
      const bool many = bound.ranks() > kAlwaysSimulated || divides_more(bound);
      if (many && (bound.value > within_error() || !can_fit(bound))) {
        trial.candidate = std::move(bound);
        pruned_.push_back(std::move(trial));
        continue;
      }
      trial.candidate = priced(trial.candidate.configuration);
      keep(trial);
      bases_.push_back(std::move(trial));
    }
    std::stable_sort(bases_.begin(), bases_.end(),
                     [](const Trial& a, const Trial& b) { return a.candidate.value < b.candidate.value; });
  }

  // Whether any setting of a split fits, `plain` or another: head chunks and directions have buffers of their own. Each
  // costs a sum of bytes, where a simulation may cost a second.
  bool can_fit(const Candidate& plain) {
    if (fits(plain)) return true;
    const ParallelLayout& split = plain.configuration.layout;
    for (const Kernel& kernel : kernels(q_, split))
      for (const ParallelLayout& turned : in_directions(q_, split))
        for (const ParallelLayout& layout : in_chunks(q_, turned))
          if (fits_in_memory(configure(layout, kernel))) return true;
    return false;
  }
  bool fits_in_memory(const Configuration& c) const { return memory_of(c).peak().total() / ranks_here(c) <= limit_; }

  // With many ranks, what does not fit is not simulated: its time does not matter.
  Candidate priced_if_it_fits(const Configuration& c) const {
    return c.layout.ranks() <= kAlwaysSimulated || fits_in_memory(c) ? priced(c) : bounded(c);
  }

  Candidate bounded(const Configuration& c) const {
    // Loading, text and decoding are those of one token.
    Work one = q_.work;
    one.tokens = one.layers = 1;
    one.ranks_of_all_runs = one.runs_of_host(c.layout.ranks(), q_.hardware.devices_per_host);
    Configuration alone = c;
    alone.layout.data = 1;
    alone.layout.tensor = 1;
    alone.layout.context = c.layout.context.alone();
    Candidate candidate;
    candidate.configuration = c;
    candidate.simulated = false;
    candidate.time = simulate_run(one, q_.hardware, alone);
    candidate.time.step = least_of_split(q_.work, q_.hardware, c);
    candidate.time.denoise = static_cast<double>(q_.work.steps) * candidate.time.step.seconds;
    finish(candidate);
    return candidate;
  }

  void keep(const Trial& trial) {
    trials_.push_back(trial);
    if (fits(trial.candidate)) fastest_ = std::min(fastest_, trial.candidate.value);
  }

  double bound(const Trial& base, const ParallelLayout& changed) const {
    const StepPrediction& step = base.candidate.time.step;
    const double least = least_of_change(step, base.candidate.configuration.layout.context, changed.context);
    const double saved = std::max(0.0, step.seconds - least) * static_cast<double>(q_.work.steps);
    return objective_value(q_, base.candidate.run_seconds() - saved, base.candidate.ranks());
  }

  double within_error() const { return fastest_ * (1 + q_.hardware.model_error); }

  // Every direction, and with it every number of head chunks.
  void vary(const Trial& base) {
    const ParallelLayout& plain = base.candidate.configuration.layout;
    for (const ParallelLayout& turned : in_directions(q_, plain)) {
      Trial one_chunk = base;
      const std::vector<ParallelLayout> chunked = in_chunks(q_, turned);
      if (turned != plain) {
        if (bound(base, chunked.back()) > within_error()) continue;
        one_chunk.candidate = priced_if_it_fits(configure(turned, base.kernel));
        keep(one_chunk);
      }
      for (const ParallelLayout& layout : chunked) {
        if (layout == turned || bound(one_chunk, layout) > within_error()) continue;
        keep({base.kernel, priced_if_it_fits(configure(layout, base.kernel))});
      }
    }
  }

  // With a simpler kernel some of the fastest may still be within the model's error.
  void simplify() {
    const size_t count = trials_.size();
    for (size_t i = 0; i < count; ++i) {
      const Trial trial = trials_[i];
      if (!fits(trial.candidate) || trial.candidate.value > within_error()) continue;
      for (const Kernel& kernel : kernels(q_, trial.candidate.configuration.layout)) {
        const Trial other = with_kernel(trial, kernel);
        if (other.candidate.configuration.complexity(q_.hardware) >= trial.candidate.complexity) continue;
        keep(priced_trial(other));
      }
    }
  }

  // Shows the effect of the kernel's settings on the fastest.
  void other_kernels() {
    const Trial* fastest = nullptr;
    for (const Trial& trial : trials_)
      if (fits(trial.candidate) && (fastest == nullptr || trial.candidate.value < fastest->candidate.value))
        fastest = &trial;
    if (fastest == nullptr) return;
    const Trial one = *fastest;
    for (const Kernel& kernel : kernels(q_, one.candidate.configuration.layout)) {
      const Trial other = with_kernel(one, kernel);
      if (!known(other.candidate.configuration)) keep(priced_trial(other));
    }
  }

  // Legal combinations for which nothing was computed.
  int64_t left_out() const {
    int64_t legal = 0;
    for (const std::vector<Trial>* trials : {&bases_, &pruned_}) {
      for (const Trial& base : *trials) {
        const ParallelLayout& split = base.candidate.configuration.layout;
        legal += static_cast<int64_t>(kernels(q_, split).size() * in_directions(q_, split).size() *
                                      in_chunks(q_, split).size());
      }
    }
    return legal - static_cast<int64_t>(trials_.size() + pruned_.size());
  }

  Trial with_kernel(const Trial& trial, const Kernel& kernel) const {
    Trial other = trial;
    other.kernel = kernel;
    other.candidate.configuration.softmax = kernel.softmax;
    other.candidate.configuration.block_q = kernel.block_q;
    return other;
  }
  Trial priced_trial(Trial trial) const {
    trial.candidate = priced(trial.candidate.configuration);
    return trial;
  }
  bool known(const Configuration& c) const {
    return std::any_of(trials_.begin(), trials_.end(),
                       [&](const Trial& trial) { return trial.candidate.configuration == c; });
  }

  // Decoding is independent of the rest: other numbers of VAE ranks are shown for the best only.
  void other_vae_ranks() {
    const Candidate* best = best_trial();
    if (best == nullptr) return;
    const Candidate one = *best;
    for (const int count : vae_ranks(q_, one.ranks())) {
      if (count == one.configuration.layout.vae_ranks) continue;
      Candidate other = one;
      other.configuration.layout.vae_ranks = count;
      const RunPrediction around = around_denoising(q_.work, q_.hardware, count);
      other.time.conditions = around.conditions;
      other.time.vae = around.vae;
      other.memory = memory_of(other.configuration);
      other.bytes_per_rank = other.memory.peak().total() / other.ranks_here;
      other.value = objective_value(q_, other.run_seconds(), other.ranks());
      other.complexity += 1;  // less simple than the one with the chosen number
      trials_.push_back({{}, std::move(other)});
    }
  }

  // ---- the verdicts ----

  // Whether its ranks share layers without a key that says so.
  bool divides_more(const Candidate& c) const { return c.configuration.layout.tensor != q_.request.tensor.value_or(1); }
  // No profile says how matrices do that are narrower, so a gain within the model's error is none.
  bool worth_dividing(const Candidate& c) const {
    return !divides_more(c) || c.value * (1 + q_.hardware.model_error) < undivided_;
  }

  // The fastest comes first. Of those that take the same time: the simplest; where several runs share the machine, the
  // shortest run; in shared memory, the longest ring.
  bool better(const Candidate& a, const Candidate& b) const {
    const bool a_worth = worth_dividing(a), b_worth = worth_dividing(b);
    if (a_worth != b_worth) return a_worth;
    const bool a_fast = as_fast(a), b_fast = as_fast(b);
    if (a_fast != b_fast) return a_fast;
    if (!a_fast) return a.value < b.value;
    if (a.complexity != b.complexity) return a.complexity < b.complexity;
    if (q_.objective != Objective::kLatency) return a.run_seconds() < b.run_seconds();
    if (in_one_memory() && ring_of(a) != ring_of(b)) return ring_of(a) > ring_of(b);
    return a.value < b.value;
  }

  void find_fastest() {
    const Candidate* fastest = nullptr;
    const auto take_faster = [&](const Candidate& c, bool may) {
      if (may && c.simulated && fits(c) && (fastest == nullptr || c.value < fastest->value)) fastest = &c;
    };
    for (const Trial& trial : trials_) take_faster(trial.candidate, !divides_more(trial.candidate));
    if (fastest != nullptr) undivided_ = fastest->value;
    for (const Trial& trial : trials_) take_faster(trial.candidate, worth_dividing(trial.candidate));
    if (fastest == nullptr) return;
    fastest_ = fastest->value;
    fastest_data_ = fastest->configuration.layout.data;
  }

  // Ranks in shared memory also share caches, which the model does not include. Where the model predicts no difference,
  // a ring is faster because its blocks of keys are shorter (docs/planner.md, "What auto does in a run"). That was
  // measured for ranks that attend to the same tokens, not for other numbers of data ranks.
  bool in_one_memory() const {
    const std::vector<LinkLevel>& links = q_.hardware.links;
    return q_.objective == Objective::kLatency && !links.empty() && links.front().kind == LinkKind::kBus &&
           q_.ranks <= links.front().members;
  }
  bool as_fast(const Candidate& c) const {
    if (!in_one_memory()) return c.value <= fastest_ * (1 + kRounding);
    return c.value <= fastest_ * (1 + no_difference()) && c.configuration.layout.data == fastest_data_;
  }
  double no_difference() const { return std::min(kNoDifference, q_.hardware.model_error); }
  static int ring_of(const Candidate& c) { return c.configuration.layout.context.ring; }

  const Candidate* best_trial() const {
    const Candidate* best = nullptr;
    for (const Trial& trial : trials_) {
      const Candidate& c = trial.candidate;
      if (c.simulated && fits(c) && (best == nullptr || better(c, *best))) best = &c;
    }
    return best;
  }

  // Candidates within the model's error of the best are tied with it.
  void judge() {
    const Candidate* chosen = best_trial();
    const double best = chosen == nullptr ? fastest_ : chosen->value;
    std::vector<Candidate>& all = ranking_.candidates;
    for (Trial& trial : trials_) all.push_back(std::move(trial.candidate));
    for (Trial& trial : pruned_) all.push_back(std::move(trial.candidate));
    for (Candidate& c : all) {
      // A lower bound is never a tie.
      const bool near_best = c.simulated && c.value <= best * (1 + q_.hardware.model_error);
      c.verdict = !fits(c) ? Verdict::kDoesNotFit : near_best ? Verdict::kTie : Verdict::kSlower;
    }
    std::stable_sort(all.begin(), all.end(), [this](const Candidate& a, const Candidate& b) {
      if (a.verdict != b.verdict) return a.verdict < b.verdict;
      if (a.verdict == Verdict::kTie) return better(a, b);
      if (a.verdict == Verdict::kDoesNotFit) return a.bytes_per_rank < b.bytes_per_rank;
      return a.value < b.value;
    });
    if (!all.empty() && all.front().verdict == Verdict::kTie) all.front().verdict = Verdict::kBest;
    for (Candidate& c : all) c.reason = reason_of(c, all.front());
  }

  std::string reason_of(const Candidate& c, const Candidate& best) const {
    if (c.verdict == Verdict::kDoesNotFit) return does_not_fit(c);
    const double relative = c.value / best.value - 1;
    const std::string by = percent(std::abs(relative));
    if (c.verdict == Verdict::kBest) {
      const std::string limit = "limited by " + c.time.step.limited_by();
      if (c.value <= fastest_ * (1 + kRounding)) return limit;
      return fmt::format("{}; of the simplest within {} of the fastest the longest ring, {} behind it", limit,
                         percent(no_difference()), percent(c.value / fastest_ - 1));
    }
    if (c.verdict == Verdict::kTie) {
      return fmt::format("{} {}, less than the model's error of {}", by, relative < 0 ? word(-1) : word(1),
                         percent(q_.hardware.model_error));
    }
    std::string text = fmt::format("{}{} {}", c.simulated ? "" : "at least ", by, word(1));
    if (!c.simulated)
      return text + ", by matrix multiplications, tiles and what the ring and tensor ranks send alone (not simulated)";
    if (c.ranks() != best.ranks()) return text + fmt::format(": limited by {}", c.time.step.limited_by());
    const std::string more = c.time.step.seconds > best.time.step.seconds
                                 ? largest_increase(c.time.step, best.time.step)
                                 : fmt::format("decoding +{:.3g} s", c.time.shared_rows() - best.time.shared_rows());
    return more.empty() ? text : text + ": " + more;
  }

  const char* word(int sign) const {
    switch (q_.objective) {
      case Objective::kLatency:
        return sign < 0 ? "faster" : "slower";
      case Objective::kThroughput:
        return sign < 0 ? "less time a video" : "more time a video";
      case Objective::kCost:
        return sign < 0 ? "cheaper" : "more expensive";
    }
    return "";
  }

  // Total, limit and parts are those of a process, which is one rank or several.
  std::string does_not_fit(const Candidate& c) const {
    const MemoryPhase& peak = c.memory.peak();
    const int here = c.ranks_here;
    const Bytes limit = limit_ * here;
    const std::string who = here == 1 ? "a rank" : fmt::format("a process of {} ranks", here);
    return fmt::format("{} needs {}, {} more than {}, in phase '{}' ({})", who, peak.total().text(),
                       (peak.total() - limit).text(), limit.text(), peak.name, peak.text());
  }

  void add_illegal() {
    for (const IllegalSplit& illegal : illegal_splits(q_, q_.ranks)) {
      Candidate candidate;
      candidate.configuration.layout = illegal.layout;
      candidate.verdict = Verdict::kIllegal;
      candidate.reason = illegal.reason;
      ranking_.candidates.push_back(std::move(candidate));
    }
  }

  // ---- where nothing fits ----

  // The least memory that a rank needs with `ranks` ranks, and in which phase.
  std::pair<Bytes, std::string> least_memory(int ranks) {
    Question wider = q_;
    wider.ranks = ranks;
    wider.request.tensor = fixed_tensor(q_.request);
    wider.request.weight_shards.reset();
    const int shards = q_.request.weight_shards.value_or(1);
    const int tensor = q_.request.tensor.value_or(1);
    const bool all_share = shards == q_.ranks / tensor && (shards > 1 || tensor == 1);
    wider.request.context_ranks.reset();
    wider.request.context.ulysses.reset();
    wider.request.context.ring.reset();
    wider.request.context.gather.reset();
    if (q_.all_decode) wider.request.vae_ranks.reset();
    Bytes least = Bytes::most();
    std::string phase;
    const int here = std::min(q_.ranks_here, ranks);
    for (const ParallelLayout& split : legal_splits(wider, ranks)) {
      // With one head chunk and a forward ring.
      ParallelLayout layout = split;
      layout.context.direction = parallel::Direction::kForward;
      layout.context.head_chunks = 1;
      layout.text_ranks = std::min(q_.request.text_ranks.value_or(ranks), ranks);
      layout.vae_ranks = vae_ranks(wider, ranks).back();
      const int places = ranks / layout.tensor;
      layout.weight_shards = all_share ? places : std::gcd(shards, places);
      const MemoryPlan plan =
          memory_of(least_memory_ ? least_memory_ : memory_, layout, parallel::Softmax::kOnline, here);
      const Bytes bytes = plan.peak().total() / here;
      if (bytes >= least) continue;
      least = bytes;
      phase = plan.peak().name;
    }
    return {least, phase};
  }

  std::string least_that_fits() {
    constexpr int kLarge = 1024;  // more ranks than this hardly change the memory of one
    const int most_ranks = std::max(kLarge, 2 * q_.ranks);
    const auto fits_on = [&](int ranks) { return least_memory(ranks).first <= limit_; };
    int enough = 1;  // fewer ranks may divide what more cannot
    while (enough < q_.ranks && !fits_on(enough)) ++enough;
    while (enough <= most_ranks && !fits_on(enough)) enough *= 2;
    const auto [here, here_in] = least_memory(q_.ranks);
    if (enough > most_ranks) {
      const auto [least, phase] = least_memory(most_ranks);
      return fmt::format(
          "{} of {} or more each; more of these are never enough, for each of {} still needs {}, in phase "
          "'{}'",
          counted(q_.ranks, "device"), here.text(), most_ranks, least.text(), phase);
    }
    for (int ranks = std::max(q_.ranks, enough / 2 + 1); ranks < enough; ++ranks)
      if (fits_on(ranks)) enough = ranks;
    return fmt::format("{} of these devices ({} each), or {} of {} or more each", enough,
                       least_memory(enough).first.text(), q_.ranks, here.text());
  }

  const Question& q_;
  const Bytes limit_;
  const std::function<Workload(const ParallelLayout&, int)> memory_, least_memory_;
  std::vector<Trial> bases_;                // the simplest settings of every split that was simulated
  std::vector<Trial> trials_;               // everything that was simulated
  std::vector<Trial> pruned_;               // splits that were pruned by their bound
  std::map<std::pair<int, int>, int> vae_;  // by ranks, and tensor ranks of them
  double fastest_ = std::numeric_limits<double>::infinity();
  double undivided_ = std::numeric_limits<double>::infinity();  // the fastest of what divides no more than keys say
  int fastest_data_ = 0;
  Ranking ranking_;
};

}  // namespace

std::function<Workload(const ParallelLayout&, int)> remembered(
    std::function<Workload(const ParallelLayout&, int)> memory) {
  struct Known {
    std::mutex mutex;
    std::map<std::array<int, 7>, Workload> workloads;
  };
  return [memory = std::move(memory), known = std::make_shared<Known>()](const ParallelLayout& layout, int ranks_here) {
    const std::array key = {layout.data,       layout.context.ranks(), layout.tensor, layout.vae_ranks,
                            layout.text_ranks, layout.weight_shards,   ranks_here};
    const std::lock_guard lock(known->mutex);
    auto found = known->workloads.find(key);
    if (found == known->workloads.end()) found = known->workloads.emplace(key, memory(layout, ranks_here)).first;
    return found->second;
  };
}

Ranking search(const Question& question) { return Search(question).run(); }

}  // namespace zoetrope::planner
