#include <memory>
#include <optional>

#include "bench/calibrate_measure.h"
#include "device/thread_team.h"

namespace zoetrope::bench {
namespace {

// Up to the size of a chunk of the transformer: more rows are more chunks (models/wan/transformer/workspace.h).
constexpr int64_t kMostGemmRows = 1024;
constexpr int64_t kGemmRows[] = {64, 256, kMostGemmRows};
constexpr int64_t kShorter[] = {64, 256, 1024};  // than kLongKeys
constexpr int64_t kTileRows[] = {64, 128, 512};  // 256 is the built-in size
constexpr int64_t kHostReadMatrices = 16;        // of all readers of a host

// Something to be timed relative to the peak, and the curve that gets the result.
struct Case {
  MeasuredCurve* curve;
  std::string figure, of;  // "gemm", "rows"
  int64_t size;
  std::function<double()> work;
  const MeasuredCurve* over = nullptr;  // of a gain, the curve whose last value it is over
};

// The figures of one dtype. Cases alternate, each between two windows of the peak: clock rates and other processes
// change within seconds, and a disturbance should affect one repeat of every case, not all repeats of one.
class DtypeMeter {
 public:
  DtypeMeter(CalibrationRank& rank, const machine::LayerWeights& weights, const machine::LayerWeights* int8,
             const ComputeNotes& notes)
      : rank_(rank),
        weights_(weights),
        int8_(int8),
        notes_(notes),
        dtype_(weights.dtype()),
        name_(dtype_ == DType::kBF16 ? "bf16" : "float32"),
        convolutions_(rank.stream(), dtype_) {}

  DtypeFigures measure() {
    add_cases();
    measure_cases();
    passes();
    fold();
    return figures_;
  }

 private:
  void say(const std::string& what) const { notes_.say(name_ + ": " + what); }
  void found(const std::string& figure, const std::string& at, const std::string& value, double spread) const {
    notes_.found(name_ + "." + figure, at, value, spread);
  }

  void add_cases() {
    for (const int64_t rows : kGemmRows) multiply(&figures_.gemm, "gemm", weights_, rows);
    if (int8_ != nullptr) multiply(&figures_.gemm_int8, "int8_gain", *int8_, kMostGemmRows, &figures_.gemm);
    using kernels::Softmax;
    for (const int64_t size : kShorter)
      attend({&figures_.attention, "attention", "queries", size, {}}, size, kLongKeys);
    attend({&figures_.attention, "attention", "queries", kLongKeys, {}}, kLongKeys, kLongKeys);
    for (const int64_t size : kShorter)
      attend({&figures_.attention_keys, "attention_keys", "keys", size, {}}, kLongKeys, size);
    attend({&figures_.attention_fixed_max, "fixed_max_gain", "keys", kLongKeys, {}, &figures_.attention}, kLongKeys,
           kLongKeys, {.softmax = Softmax::kFixedMax});
    if (dtype_ == DType::kBF16)
      attend({&figures_.attention_int8, "int8_attention_gain", "keys", kLongKeys, {}, &figures_.attention}, kLongKeys,
             kLongKeys, {.int8 = true});
    figures_.kernel = AttentionWork(rank_.stream(), dtype_, 1, 1).implementation();
    if (figures_.kernel != "scalar")
      for (const int64_t rows : kTileRows)
        attend({&figures_.tile_rows, "attention", "rows a tile", rows, {}}, kLongKeys, kLongKeys, {.tile_rows = rows});
    cases_.push_back({&figures_.convolution, "convolution", "taps", 27, [this] { return convolutions_.next(); }});
  }
  void multiply(MeasuredCurve* curve, const char* figure, const machine::LayerWeights& weights, int64_t rows,
                const MeasuredCurve* over = nullptr) {
    auto gemms = std::make_shared<machine::LayerGemms>(rank_.stream(), weights, rows);
    cases_.push_back({curve, figure, "rows", rows, [gemms] { return gemms->next(); }, over});
  }
  void attend(Case one, int64_t queries, int64_t keys, const machine::AttentionVariant& variant = {}) {
    auto work = std::make_shared<AttentionWork>(rank_.stream(), dtype_, queries, keys, variant);
    one.work = [work] { return work->attend(); };
    cases_.push_back(std::move(one));
  }

  void measure_cases() {
    const Isa isa = calibrated_isa(rank_, dtype_);
    figures_.peak_of = isa_name(isa);
    for (const Case& one : cases_) one.work();  // allocates pages, loads code and tables
    std::vector<double> peaks{rank_.peak(isa)};
    std::vector<std::vector<double>> fractions(cases_.size());
    for (int round = 0; round < kRepeats; ++round) {
      say(fmt::format("matrix multiplication, attention, convolution, round {} of {}", round + 1, kRepeats));
      for (size_t i = 0; i < cases_.size(); ++i) {
        const double before = peaks.back(), rate = rank_.rate(cases_[i].work);
        peaks.push_back(rank_.peak(isa));
        fractions[i].push_back(rate / ((before + peaks.back()) / 2));
      }
    }
    figures_.peak = measured(peaks);
    found("peak", figures_.peak_of, fmt::format("{:.1f} GFLOP/s", figures_.peak.value * 1e-9), figures_.peak.spread);
    for (size_t i = 0; i < cases_.size(); ++i) {
      const Case& one = cases_[i];
      const Measured value = measured(fractions[i]);
      one.curve->emplace_back(one.size, value);
      found(one.figure, fmt::format("{} {}", one.size, one.of),
            one.over != nullptr ? fmt::format("{:.3g} x", value.value / one.over->back().second.value)
                                : fmt::format("{:.1f} %", 100 * value.value),
            value.spread);
    }
    cases_.clear();
  }

  void passes() {
    say("norms and rotations");
    machine::TokenPasses passes(rank_.stream(), weights_);
    const auto inverse = [](Measured rate) { return Measured{1 / rate.value, rate.spread}; };
    figures_.token_seconds = inverse(rank_.rates([&] { return passes.next(machine::TokenPasses::kChunk); }));
    found("token_seconds", fmt::format("width {}", machine::kLayerWidth),
          fmt::format("{:.3f} us", figures_.token_seconds.value * 1e6), figures_.token_seconds.spread);
    AttentionWork one(rank_.stream(), dtype_, 1, 1);
    figures_.layer_overhead = inverse(rank_.rates([&] {
      passes.next(1);
      one.attend();  // self-attention and cross-attention
      one.attend();
      return 1.0;
    }));
    found("layer_overhead", "1 token", fmt::format("{:.1f} us", figures_.layer_overhead.value * 1e6),
          figures_.layer_overhead.spread);
  }

  // The cost of folding blocks compared with attending them: init, the state's memory traffic, finish. Largest for
  // short blocks.
  void fold() {
    constexpr int64_t kRows = 512;
    constexpr int kBlocks = 4;
    say("folding ring blocks");
    AttentionWork work(rank_.stream(), dtype_, kRows, kRows);
    std::vector<double> extra;
    for (int i = 0; i < kRepeats; ++i) {
      const double single = 1 / rank_.rate([&] { return work.attend() > 0 ? 1.0 : 0.0; });
      const double folded = 1 / rank_.rate([&] { return work.fold(kBlocks) > 0 ? 1.0 : 0.0; });
      extra.push_back(folded / kBlocks - single);
    }
    // Noise unless all repeats show it.
    const double seconds = minimum(extra) > 0 ? median(extra) : 0;
    figures_.fold_seconds = seconds / static_cast<double>(kRows * work.heads());
  }

  CalibrationRank& rank_;
  const machine::LayerWeights& weights_;
  const machine::LayerWeights* int8_;
  const ComputeNotes& notes_;
  DType dtype_;
  std::string name_;
  machine::Convolutions convolutions_;
  std::vector<Case> cases_;
  DtypeFigures figures_;
};

}  // namespace

Isa calibrated_isa(CalibrationRank& rank, DType dtype) {
  return isa_of_kernel(AttentionWork(rank.stream(), dtype, 1, 1).implementation());
}

DtypeFigures measure_dtype(CalibrationRank& rank, const machine::LayerWeights& weights,
                           const machine::LayerWeights* int8, const ComputeNotes& notes) {
  return DtypeMeter(rank, weights, int8, notes).measure();
}

Measured measure_memory(CalibrationRank& rank) {
  constexpr size_t kBytes = size_t{32} << 20;  // per thread, read, and as many written
  std::vector<double> repeats;
  for (int i = 0; i < kRepeats; ++i) {
    rank.world().barrier();
    repeats.push_back(rank.mean(2 * measure_copy_bandwidth(rank.threads(), kBytes, rank.seconds())));
  }
  return measured(repeats);
}

Measured measure_host_read(CalibrationRank& rank, const HostReaders& readers) {
  const int64_t matrices = readers.reads ? std::max<int64_t>(1, kHostReadMatrices / readers.readers) : 0;
  std::optional<machine::StoredMatrices> stored;
  std::optional<ThreadTeam> team;
  if (readers.reads) {
    stored.emplace(matrices);
    team.emplace(readers.threads);
  }
  const double bytes = rank.world().all_reduce_sum(stored ? static_cast<double>(stored->bytes()) : 0) / readers.hosts;
  std::vector<double> repeats;
  for (int i = 0; i < kRepeats; ++i) {
    repeats.push_back(bytes / rank.slowest(1, [&] {
      if (stored) stored->pack(*team);
    }));
  }
  return measured(repeats);
}

}  // namespace zoetrope::bench
