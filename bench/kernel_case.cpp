// `bench kernel`: flash attention alone, over shapes × dtypes × implementations × softmax × threads. Each result is
// verified, then timed between windows that measure the peak of the instruction set.
#include <algorithm>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/words.h"
#include "bench/attention_data.h"
#include "bench/cases.h"
#include "bench/peak.h"
#include "bench/statistics.h"
#include "bench/words.h"
#include "kernels/flash_attention/tile_search.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::bench {
namespace {

using kernels::FlashAttention;
using kernels::FlashProblem;

constexpr int kMostThreads = 4096;
constexpr double kMostScalarFlop = 2e9;  // about a second of the scalar kernel

constexpr const char* kAuto = "auto";  // the implementation that is used unless one is named
constexpr const char* kInt8 = "int8";  // of bf16, multiplied in int8

struct Axes {
  std::vector<problems::AttentionShape> shapes;
  std::vector<std::string> dtypes, implementations, softmaxes;
  std::vector<int> threads;
  bool all_implementations = false, all_dtypes = false;
};

Axes parse(const KernelSettings& settings) {
  Axes axes;
  axes.shapes = parse_shapes("shapes", settings.shapes);
  axes.dtypes = choose_dtypes("dtype", settings.dtype, true);
  std::vector<std::string> implementations = FlashAttention::implementations();
  if (settings.implementation != "all") implementations.emplace_back(kAuto);
  axes.implementations = choose_words("implementation", settings.implementation, implementations);
  axes.softmaxes = choose_words("softmax", settings.softmax, {"online", "exact_online", "fixed_max"});
  axes.threads = parse_counts("threads", settings.threads, available_threads(), kMostThreads);
  axes.all_implementations = settings.implementation == "all";
  axes.all_dtypes = settings.dtype == "all";
  return axes;
}

std::string mask_text(const problems::AttentionShape& shape) {
  if (shape.key_lengths > 0) return fmt::format("lengths {:.0f} %", shape.key_lengths * 100);
  if (shape.key_mask > 0) return fmt::format("mask {:.0f} %", shape.key_mask * 100);
  return "none";
}

std::vector<Column> columns() {
  return {{"batch", "B"},
          {"queries", "Sq"},
          {"keys", "Skv"},
          {"heads", "H"},
          {"head_dim", "D"},
          {"mask", "mask"},
          {"dtype", "dtype"},
          {"implementation", "implementation"},
          {"softmax", "softmax"},
          {"threads", "threads"},
          {"block_q", "rows of a tile", Format::kText, true},
          {"block_kv", "keys of a tile", Format::kText, true},
          {"seconds_min", "least", Format::kSeconds},
          {"seconds_median", "median", Format::kSeconds},
          {"gflops", "GFLOP/s", Format::kOneDecimal},
          {"peak_gflops", "peak", Format::kOneDecimal},
          {"fraction_min", "least %", Format::kPercent, true},
          {"fraction", "of peak", Format::kPercent},
          {"fraction_max", "most %", Format::kPercent, true},
          {"cpu", "cpu", Format::kPercent},
          {"repeats", "repeats", Format::kText, true},
          {"tiles_fixed", "fixed", Format::kCount},
          {"tiles_online", "online", Format::kCount},
          {"rel_l2", "rel L2", Format::kScientific},
          {"tolerance", "tolerance", Format::kScientific, true},
          {"note", ""}};
}

// The lines of one plot share dtype and threads.
using PlotKey = std::pair<std::string, int>;
struct Measured {
  double tokens, fraction, gflops;
};
// In the order of the implementations: the fastest first.
using Lines = std::vector<std::pair<std::string, std::vector<Measured>>>;

FlashProblem problem_of(const AttentionData& data, const std::string& dtype) {
  FlashProblem problem = data.problem();
  problem.int8 = dtype == kInt8;
  return problem;
}

// Implementations that another dtype is for, whatever the machine.
bool refuses_dtype(const std::string& dtype, const std::string& implementation) {
  if (implementation == kAuto || implementation == "scalar") return false;
  return !multiplies(isa_of_kernel(implementation), pipeline::dtype_of(dtype));
}

class KernelBench {
 public:
  KernelBench(const KernelSettings& settings, const Progress& progress, Outcome& outcome)
      : settings_(settings), progress_(progress), outcome_(outcome), axes_(parse(settings)) {
    table_.columns = columns();
  }

  void run() {
    for (const problems::AttentionShape& shape : axes_.shapes) {
      for (const std::string& dtype : axes_.dtypes) {
        const AttentionData data(shape, dtype == kInt8 ? DType::kBF16 : pipeline::dtype_of(dtype));
        const SampledReference reference(data);
        Tensor o(data.problem().dtype, data.q.shape());
        for (const std::string& implementation : axes_.implementations) {
          // With all of either, pairs that do not fit are left out silently.
          const bool all = axes_.all_implementations || axes_.all_dtypes;
          if (all && refuses_dtype(dtype, implementation)) continue;
          for (const std::string& softmax : axes_.softmaxes) {
            for (const int threads : axes_.threads) {
              run_case(shape, data, reference, o, {dtype, implementation, softmax, threads});
            }
          }
        }
      }
    }
    // A report without any figure is a failure.
    if (timed_ > 0 || outcome_.wrong > 0 || outcome_.unmeasured > 0) return;
    outcome_.add_unmeasured("none of the implementations did any of the shapes; the notes say why");
  }

  Table& table() { return table_; }

  // Of cases with one head, no mask, D = 128, at two lengths or more.
  std::vector<LinePlot> plots() const {
    std::vector<LinePlot> plots;
    for (const auto& [key, lines] : lines_) {
      const std::string where = fmt::format("{}, {}", key.first, counted(key.second, "thread"));
      LinePlot fraction, speed;
      fraction.title = where + ": fraction of peak against length";
      fraction.y_label = "of the measured peak";
      fraction.y_is_fraction = true;
      speed.title = where + ": speed against length";
      speed.y_label = "GFLOP/s";
      fraction.x_label = speed.x_label = "tokens (one head of 128)";
      for (const auto& [name, points] : lines) {
        if (points.size() < 2 || fraction.lines.size() == kMostSeries) continue;
        LinePlot::Line& fractions = fraction.lines.emplace_back();
        LinePlot::Line& speeds = speed.lines.emplace_back();
        fractions.name = speeds.name = name;
        fractions.slot = speeds.slot =
            static_cast<size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
        for (const Measured& point : points) {
          fractions.points.push_back({point.tokens, point.fraction});
          speeds.points.push_back({point.tokens, point.gflops});
        }
      }
      if (fraction.lines.empty()) continue;
      plots.push_back(std::move(fraction));
      plots.push_back(std::move(speed));
    }
    return plots;
  }

  // The fastest of each dtype at its longest sequence.
  std::vector<std::pair<std::string, std::string>> highlights() const {
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& [key, lines] : lines_) {
      const Measured* best = nullptr;
      std::string name;
      for (const auto& [line, points] : lines) {
        const Measured& last = points.back();
        if (best != nullptr && (last.tokens < best->tokens || last.gflops <= best->gflops)) continue;
        best = &last;
        name = line;
      }
      if (best == nullptr) continue;
      result.emplace_back(fmt::format("{:.0f} GFLOP/s", best->gflops),
                          fmt::format("{}, {} tokens, {}: {:.1f} % of the peak of {}", key.first, best->tokens,
                                      counted(key.second, "thread"), best->fraction * 100, name));
    }
    return result;
  }

 private:
  struct Choice {
    std::string dtype, implementation, softmax;
    int threads;
  };

  void run_case(const problems::AttentionShape& shape, const AttentionData& data, const SampledReference& reference,
                Tensor& o, const Choice& choice) {
    if (progress_) {
      progress_(fmt::format("{}x{}x{}x{} {} {} {} on {}", shape.batch, shape.queries, shape.heads, shape.head_dim,
                            choice.dtype, choice.implementation, choice.softmax, counted(choice.threads, "thread")));
    }
    table_.begin_row({shape.batch, shape.queries, shape.keys, shape.heads, shape.head_dim, mask_text(shape),
                      choice.dtype, choice.implementation, choice.softmax, int64_t{choice.threads}});
    FlashProblem problem = problem_of(data, choice.dtype);
    problem.softmax = choice.softmax == "online"         ? kernels::Softmax::kOnline
                      : choice.softmax == "exact_online" ? kernels::Softmax::kExactOnline
                                                         : kernels::Softmax::kFixedMax;
    std::string note;
    if (choice.implementation != kAuto) {
      problem.implementation = choice.implementation;
      note = FlashAttention::refusal(problem, choice.implementation);
      // With all implementations a row says that this machine cannot run one; one named by the user is a failure.
      if (!note.empty() && !axes_.all_implementations) {
        outcome_.add_unmeasured(fmt::format("implementation '{}' {}", choice.implementation, note));
      }
    }
    if (note.empty() && choice.implementation == "scalar" && axes_.all_implementations &&
        data.flop() > kMostScalarFlop) {
      note = "not timed: slow; implementation=scalar times it";
    }
    if (note.empty()) {
      try {
        note = time(problem, data, reference, o, choice, shape);
      } catch (const Error& error) {
        note = error.what();
        outcome_.add_unmeasured(note);
      }
    }
    if (!note.empty()) table_.set("note", note);
  }

  // Fills the row. Returns its note: what is wrong with the result, if anything; then nothing was timed.
  std::string time(const FlashProblem& problem, const AttentionData& data, const SampledReference& reference, Tensor& o,
                   const Choice& choice, const problems::AttentionShape& shape) {
    const FlashAttention attention(problem);
    Stream stream(choice.threads);
    table_.set("implementation", attention.implementation());
    const std::vector<kernels::TileCandidate> tiles_of = tile_candidates(problem);
    if (!tiles_of.empty()) {  // the first is the table's; the scalar kernel has none
      table_.set("block_q", tiles_of.front().sizes.query);
      table_.set("block_kv", tiles_of.front().sizes.keys);
    }
    const Isa isa = isa_of_kernel(attention.implementation());
    kernels::TileCounts tiles;
    std::string note;
    struct Wrong {};
    const auto check = [&] {
      Verdict verdict = reference.check(o);
      if (problem.int8) verdict.tolerance += kInt8AttentionTolerance;
      table_.set("tiles_fixed", tiles.fixed);
      table_.set("tiles_online", tiles.online);
      table_.set("rel_l2", verdict.relative_l2);
      table_.set("tolerance", verdict.tolerance);
      note = verdict.note();
      if (!note.empty()) throw Wrong();
    };
    const PairedOptions options{
        .repeats = static_cast<int>(settings_.repeat), .seconds = settings_.seconds, .window = settings_.window};
    std::vector<PairedRepeat> repeats;
    try {
      repeats = time_beside_peak(
          isa, stream.team(), data.flop(), options, [&] { tiles = attention.attend(stream, data.q, data.block(), o); },
          check);
    } catch (const Wrong&) {
      ++outcome_.wrong;
      return note;
    }
    add_times(repeats, data, choice, shape);
    return note;
  }

  void add_times(const std::vector<PairedRepeat>& repeats, const AttentionData& data, const Choice& choice,
                 const problems::AttentionShape& shape) {
    set_times(table_, repeats, data.flop(), choice.threads);
    const std::vector<double> fractions = each(repeats, &PairedRepeat::fraction);
    const double gflops = data.flop() / minimum(each(repeats, &PairedRepeat::seconds)) * 1e-9;
    ++timed_;
    if (shape.heads == 1 && shape.batch == 1 && shape.head_dim == 128 && shape.queries == shape.keys &&
        data.problem().mask == kernels::MaskKind::kNone) {
      const std::string name =
          axes_.softmaxes.size() == 1 ? choice.implementation : choice.implementation + " " + choice.softmax;
      remember({choice.dtype, choice.threads}, name, {static_cast<double>(shape.queries), median(fractions), gflops});
    }
  }

  // In ascending order of length; of a shape that is in two groups the first counts.
  void remember(const PlotKey& key, const std::string& name, const Measured& point) {
    Lines& lines = lines_[key];
    auto line = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == name; });
    if (line == lines.end()) line = lines.insert(lines.end(), {name, {}});
    if (std::find(names_.begin(), names_.end(), name) == names_.end()) names_.push_back(name);
    std::vector<Measured>& points = line->second;
    const auto place = std::lower_bound(points.begin(), points.end(), point.tokens,
                                        [](const Measured& p, double value) { return p.tokens < value; });
    if (place == points.end() || place->tokens != point.tokens) points.insert(place, point);
  }

  const KernelSettings& settings_;
  const Progress& progress_;
  Outcome& outcome_;
  Axes axes_;
  Table table_;
  std::map<PlotKey, Lines> lines_;
  std::vector<std::string> names_;  // of all lines
  int timed_ = 0;                   // rows
};

}  // namespace

OptionSet describe(KernelSettings& settings) {
  OptionSet options;
  options
      .text("shapes", settings.shapes,
            "groups (lengths, two_heads, head_dims, primes, cross, masks, small) or shapes BxSxHxD, each with "
            ":kv=N, :lengths=SHARE or :mask=SHARE after it")
      .text("dtype", settings.dtype, "bf16, float32, int8 (bf16 multiplied in int8), or all: the first two")
      .text("implementation", settings.implementation,
            "names, all that can run here, or auto: the one that is used unless one is named")
      .text("softmax", settings.softmax, "online, exact_online, fixed_max or all")
      .text("threads", settings.threads, "thread counts; 'all' is all that this process may use")
      .integer("repeat", settings.repeat, {0, 10000},
               "timed repeats; 0: five, or three where one takes more than a second")
      .number("seconds", settings.seconds, {0, 3600}, "repeat for at least this long in each case")
      .number(
          "window", settings.window, {0.0001, 60},
          "minimum duration of a repeat and of the peak windows around it, in seconds: short runs are repeated inside");
  return options;
}

Section bench_kernel(const KernelSettings& settings, const Progress& progress, Outcome& outcome) {
  KernelBench bench(settings, progress, outcome);
  bench.run();
  Section section;
  section.name = "kernel";
  section.title = "Flash attention on this CPU";
  section.note =
      "Exact attention, 4·Sq·(valid keys)·D floating-point operations per head. Every result was compared with the "
      "float64 definition (a sample of rows where there are many) before it was timed. 'of peak' is the median over "
      "the repeats of operations per second, relative to the instruction set's multiply-adds measured on the same "
      "threads right before and after each repeat for as long as the repeat, at most " +
      fmt::format("{:.0f} s; ", kLongestPeakWindow) +
      "'cpu' is the same by the thread's CPU time, which other processes disturb less. GFLOP/s are those of the least "
      "time. Tile sizes are from the built-in table, not from the user's tile cache (zoetrope tune).";
  section.line_plots = bench.plots();
  section.highlights = bench.highlights();
  section.table = std::move(bench.table());
  return section;
}

}  // namespace zoetrope::bench
