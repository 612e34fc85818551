// `bench attention`: every strategy over ranks × batch sizes, each verified against the float64 definition and then
// timed, with the bytes it sends and the time it waits for them.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/folders.h"
#include "bench/attention_run.h"
#include "bench/cases.h"
#include "bench/statistics.h"
#include "bench/strategies.h"
#include "bench/words.h"
#include "pipeline/settings/dtype_word.h"
#include "trace/trace.h"

namespace zoetrope::bench {
namespace {

using attention::Direction;
using attention::Strategy;
using comm::Communicator;

constexpr int kMostThreads = 4096;
constexpr int kMostRanks = 256;
constexpr int kMostBatch = 64;
constexpr int64_t kTracedBatch = 2;
constexpr int kTracedRuns = 2;

// flash is the row of one rank; over ranks it is what the row gather measures.
bool one_rank(const NamedStrategy& named) { return !attention::names_topology(named.keys); }

// The rows of strategies=all: of each topology the name, and what refines it.
std::vector<std::string> compared_strategies() {
  std::vector<std::string> rows{"flash", "gather", "ring"};
  for (const Direction way : parallel::kDirections)
    if (way != Direction::kForward) rows.push_back(fmt::format("ring+ring_direction={}", direction_name(way)));
  for (const char* name : {"ulysses", "ulysses_custom_fixed_m", "ulysses+ulysses_attention_chunks=2", "ulysses_ring",
                           "ulysses_ring_custom_fixed_m", "ulysses_ring+ulysses_attention_chunks=2"})
    rows.emplace_back(name);
  return rows;
}

struct Figures {
  AttentionMeasurement measured;
  Verdict verdict;
};

std::vector<Column> columns() {
  return {{"strategy", "strategy"},
          {"batch", "B"},
          {"ranks", "ranks"},
          {"threads", "threads"},
          {"ulysses", "U"},
          {"ring", "R"},
          {"gather", "G"},
          {"direction", "direction", Format::kText, true},
          {"softmax", "softmax", Format::kText, true},
          {"implementation", "kernel"},
          {"seconds_min", "least", Format::kSeconds},
          {"seconds_median", "median", Format::kSeconds},
          {"gflops", "GFLOP/s", Format::kOneDecimal},
          {"peak_gflops", "peak", Format::kOneDecimal},
          {"fraction", "of peak", Format::kPercent},
          {"bytes_sent", "sent", Format::kBytes},
          {"bytes_copied", "copied", Format::kBytes, true},
          {"wait_seconds", "wait", Format::kSeconds},
          {"unhidden", "not hidden", Format::kPercent},
          {"tiles_fixed", "fixed", Format::kCount, true},
          {"tiles_online", "online", Format::kCount, true},
          {"rel_l2", "rel L2", Format::kScientific},
          {"tolerance", "tolerance", Format::kScientific, true},
          {"note", "note"}};
}

class AttentionBench {
 public:
  AttentionBench(const AttentionSettings& settings, Communicator* world, const Progress& progress, Outcome& outcome)
      : settings_(settings), world_(world), progress_(progress), outcome_(outcome) {
    ranks_ = world != nullptr ? world->size() : static_cast<int>(settings.ranks);
    strategies_ = parse_strategies(settings.strategies, compared_strategies());
    if (settings.strategies != "all")
      for (const NamedStrategy& named : strategies_) strategy_of(named);  // refused before anything runs
    batches_ = parse_counts("batch", settings.batch, kMostBatch, kMostBatch);
    dtype_ = pipeline::dtype_of(settings.dtype);
    require_kernel();
    if (!settings.traces.empty()) {
      if (world != nullptr)
        fail(
            "traces: are written by bench attention without mpirun; zoetrope attention trace=FILE "
            "traces the ranks of an MPI job");
      if (std::find(batches_.begin(), batches_.end(), kTracedBatch) == batches_.end())
        fail("traces={}: traces are of batch {}, but batch={} leaves it out; add it, or leave traces out",
             settings.traces, kTracedBatch, settings.batch);
      traces_.emplace(settings.traces);
    }
    table_.columns = columns();
  }

  void run() {
    for (const int batch : batches_) {
      const problems::AttentionShape shape{
          "", batch, settings_.tokens, settings_.tokens, settings_.heads, settings_.head_dim, 0, 0};
      const AttentionData data(shape, dtype_);
      std::optional<SampledReference> reference;
      if (leads()) reference.emplace(data);
      Tensor o(dtype_, data.q.shape());
      for (const NamedStrategy& named : strategies_) {
        if (progress_ && leads()) progress_(fmt::format("{}, batch {}", named.name, batch));
        run_case(named, batch, data, reference ? &*reference : nullptr, o);
      }
    }
  }

  Section section();

 private:
  // Refused once here, not in every row.
  void require_kernel() const {
    if (settings_.kernel.empty()) return;
    kernels::FlashProblem problem;
    problem.query_tokens = problem.key_tokens = settings_.tokens;
    problem.heads = settings_.heads;
    problem.head_dim = settings_.head_dim;
    problem.dtype = dtype_;
    const std::string refusal = kernels::FlashAttention::refusal(problem, settings_.kernel);
    if (!refusal.empty()) fail("kernel={}: {}", settings_.kernel, refusal);
  }

  Strategy strategy_of(const NamedStrategy& named) const {
    Strategy strategy = attention::parse_strategy(named.keys, one_rank(named) ? 1 : ranks_, settings_.heads);
    attention::check_kv_exchange(strategy.kv_exchange, dtype_);
    strategy.kernel = settings_.kernel;
    return strategy;
  }

  // The verdict is rank 0's. `shared`: o is the output of all ranks.
  static Verdict verify(Communicator& world, const parallel::ContextLayout& layout, bool shared,
                        const SampledReference* reference, const Tensor& o) {
    if (!shared) gather_output(o, layout, world);
    world.barrier();
    Verdict verdict;
    if (world.rank() == 0) verdict = reference->check(o);
    world.broadcast(0, &verdict, sizeof verdict, "verdict");
    return verdict;
  }

  bool leads() const { return world_ == nullptr || world_->rank() == 0; }

  void run_case(const NamedStrategy& named, int batch, const AttentionData& data, const SampledReference* reference,
                Tensor& o) {
    const bool one = one_rank(named);
    const int ranks = one ? 1 : ranks_;
    // One rank gets the threads of all, so that every strategy uses the same cores.
    const int threads = static_cast<int>(settings_.threads) * (one ? ranks_ : 1);
    Strategy strategy;
    try {
      strategy = strategy_of(named);
    } catch (const Error& error) {  // these ranks cannot do it, and another strategy in its row would be no answer
      add(named, batch, ranks, threads, {}, error.what());
      return;
    }
    std::memset(o.data<char>(), 0xff, o.view().bytes());  // NaN, so that elements that are not written are found
    Figures figures;
    std::string note;
    const auto body = [&](Communicator& world, bool shared) {
      Stream stream(threads);
      AttentionRank rank(world, stream, data, o, strategy);
      rank.run();
      Figures mine;
      mine.verdict = verify(world, rank.layout(), shared, reference, o);
      if (strategy.attention_dtype == attention::AttentionDtype::kInt8)
        mine.verdict.tolerance += kInt8AttentionTolerance;
      if (mine.verdict.passed()) mine.measured = rank.time(settings_.repeat);
      if (world.rank() == 0) figures = std::move(mine);
    };
    try {
      if (world_ == nullptr) {
        comm::RankOptions options;
        options.timeout_seconds = settings_.comm_timeout;
        comm::run_ranks(
            ranks, [&](Communicator& world) { body(world, true); }, options);
      } else {
        const auto part = world_->split(world_->rank() < ranks ? 0 : 1, world_->rank());
        if (world_->rank() < ranks) body(*part, ranks == 1);
        world_->barrier();
      }
    } catch (const Error& error) {
      if (world_ != nullptr) throw;  // the other ranks must end, too
      note = error.what();
      outcome_.add_unmeasured(note);
    }
    if (note.empty() && leads() && !figures.verdict.passed()) {
      ++outcome_.wrong;
      note = figures.verdict.note();
    }
    add(named, batch, ranks, threads, figures, note.empty() ? attention::strategy_note(named.keys) : note);
    if (!settings_.traces.empty() && batch == kTracedBatch && note.empty()) {
      trace_case(named, ranks, threads, data, o, strategy);
    }
  }

  // Not during the timed runs: recording costs a little.
  void trace_case(const NamedStrategy& named, int ranks, int threads, const AttentionData& data, Tensor& o,
                  const Strategy& strategy) {
    trace::Trace trace;
    comm::RankOptions options;
    options.trace = &trace;
    comm::run_ranks(
        ranks,
        [&](Communicator& world) {
          Stream stream(threads, {&trace, world.rank(), trace::kComputeLane});
          AttentionRank rank(world, stream, data, o, strategy);
          for (int i = 0; i < kTracedRuns; ++i) {
            world.barrier();
            rank.run(i == 0 ? "first run" : "run");
          }
        },
        options);
    trace.write(std::filesystem::path(settings_.traces) / fmt::format("{}.json", named.name));
  }

  void add(const NamedStrategy& named, int batch, int ranks, int threads, const Figures& figures,
           const std::string& note);

  const AttentionSettings& settings_;
  Communicator* world_;
  const Progress& progress_;
  Outcome& outcome_;
  std::vector<NamedStrategy> strategies_;
  std::vector<int> batches_;
  int ranks_ = 1;
  DType dtype_ = DType::kBF16;
  std::optional<MadeFolder> traces_;
  Table table_;
  std::map<std::string, std::map<int, std::pair<double, double>>> bars_;  // strategy, batch: fraction, not hidden
};

void AttentionBench::add(const NamedStrategy& named, int batch, int ranks, int threads, const Figures& figures,
                         const std::string& note) {
  table_.begin_row({named.name, int64_t{batch}, int64_t{ranks}, int64_t{threads}});
  if (!note.empty()) table_.set("note", note);
  const AttentionMeasurement& m = figures.measured;
  if (m.seconds.empty()) return;
  std::vector<double> fractions, unhidden;
  for (size_t i = 0; i < m.seconds.size(); ++i) {
    fractions.push_back(m.flop / m.seconds[i] / m.peak_flops[i]);
    unhidden.push_back(m.wait_seconds[i] / m.seconds[i]);
  }
  table_.set("ulysses", int64_t{m.layout.ulysses});
  table_.set("ring", int64_t{m.layout.ring});
  table_.set("gather", int64_t{m.layout.gather});
  table_.set("direction", direction_name(m.layout.direction));
  table_.set("softmax", softmax_name(m.softmax));
  table_.set("implementation", m.implementation);
  table_.set("seconds_min", minimum(m.seconds));
  table_.set("seconds_median", median(m.seconds));
  table_.set("gflops", m.flop / minimum(m.seconds) * 1e-9);
  table_.set("peak_gflops", median(m.peak_flops) * 1e-9);
  table_.set("fraction", median(fractions));
  table_.set("bytes_sent", m.bytes_sent);
  table_.set("bytes_copied", m.bytes_copied);
  table_.set("wait_seconds", median(m.wait_seconds));
  table_.set("unhidden", median(unhidden));
  table_.set("tiles_fixed", m.tiles_fixed);
  table_.set("tiles_online", m.tiles_online);
  table_.set("rel_l2", figures.verdict.relative_l2);
  table_.set("tolerance", figures.verdict.tolerance);
  bars_[named.name][batch] = {median(fractions), median(unhidden)};
}

Section AttentionBench::section() {
  Section section;
  section.name = "attention";
  section.title = "Strategies over ranks";
  section.note = fmt::format(
      "{} tokens, {} heads of {}, {}. flash is one rank with the threads of all, so that every strategy uses the same "
      "cores. 'of peak' is the median of 4·S·S·D·H·B operations per second, relative to the peak of the kernel's "
      "instruction set, measured on all ranks at once before and after each repeat for as long as the repeat, at most "
      "{:.0f} s. 'sent' is the sum over ranks; "
      "'wait' is the time of the rank that waited longest for others, and 'not "
      "hidden' its share of the time. With more ranks than cores a rank also waits for others to compute.",
      settings_.tokens, settings_.heads, settings_.head_dim, dtype_ == DType::kBF16 ? "bf16" : "f32",
      kLongestPeakWindow);
  BarPlot peak, waiting;
  peak.title = "Fraction of peak by batch size";
  peak.y_label = "of the measured peak";
  waiting.title = "Share of time spent waiting for other ranks";
  waiting.y_label = "of the time";
  peak.y_is_fraction = waiting.y_is_fraction = true;
  for (const int batch : batches_) peak.groups.push_back(fmt::format("batch {}", batch));
  waiting.groups = peak.groups;
  for (const NamedStrategy& named : strategies_) {
    const auto found = bars_.find(named.name);
    if (found == bars_.end()) continue;
    BarPlot::Series fractions{named.name, {}}, waits{named.name, {}};
    for (const int batch : batches_) {
      const auto at = found->second.find(batch);
      const bool there = at != found->second.end();
      fractions.values.push_back(there ? at->second.first : 0);
      waits.values.push_back(there ? at->second.second : 0);
    }
    peak.series.push_back(fractions);
    waiting.series.push_back(waits);
  }
  // One rank, and the best strategy over several ranks, at the largest batch.
  const BarPlot::Series* best = nullptr;
  const auto highlight = [&](const BarPlot::Series& series) {
    section.highlights.emplace_back(format_cell(series.values.back(), Format::kPercent),
                                    fmt::format("of peak: {}, {}", series.name, peak.groups.back()));
  };
  for (const BarPlot::Series& series : peak.series) {
    if (series.name == "flash") {
      highlight(series);
    } else if (best == nullptr || series.values.back() > best->values.back()) {
      best = &series;
    }
  }
  if (best != nullptr) highlight(*best);
  if (!peak.series.empty()) section.bar_plots = {peak, waiting};
  for (BarPlot& plot : section.bar_plots)  // a colour each
    plot.series.resize(std::min(plot.series.size(), kMostSeries));
  if (peak.series.size() > kMostSeries) section.note += fmt::format(" A plot shows the first {} rows.", kMostSeries);
  section.table = std::move(table_);
  return section;
}

}  // namespace

OptionSet describe(AttentionSettings& settings) {
  OptionSet options;
  options
      .text("strategies", settings.strategies,
            "rows: all, or names of attention= with the keys that refine them, as ring+ring_direction=open")
      .text("batch", settings.batch, "batch sizes")
      .integer("tokens", settings.tokens, {1, int64_t{1} << 22}, "S, tokens of the whole sequence")
      .integer("heads", settings.heads, {1, 1024}, "H")
      .integer("head_dim", settings.head_dim, {1, 1024}, "D")
      .dtype("dtype", settings.dtype, "dtype of q, k, v and o")
      .integer("ranks", settings.ranks, {1, kMostRanks},
               "number of ranks, each a thread; under mpirun always its ranks")
      .integer("threads", settings.threads, {1, kMostThreads}, "compute threads per rank")
      .text("kernel", settings.kernel,
            "a flash-attention implementation by name; unset: the fastest that supports the problem")
      .integer("repeat", settings.repeat, {1, 10000}, "timed repeats")
      .number("comm_timeout", settings.comm_timeout, {0.01, 1e7}, "seconds that any wait for another rank may last")
      .text("traces", settings.traces, "a folder for a Perfetto trace of each strategy, for batch 2 only");
  return options;
}

Section bench_attention(const AttentionSettings& settings, Communicator* world, const Progress& progress,
                        Outcome& outcome) {
  AttentionBench bench(settings, world, progress, outcome);
  bench.run();
  return bench.section();
}

}  // namespace zoetrope::bench
