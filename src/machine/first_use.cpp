#include "machine/first_use.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <vector>

#include "base/available_cores.h"
#include "base/error.h"
#include "base/words.h"
#include "machine/layer_work.h"
#include "machine/peak.h"

namespace zoetrope::machine {
namespace {

// Shares of the budget, in seconds of an undisturbed measurement (the header's table).
constexpr double kGemmShare = 0.40, kAttentionShare = 0.35, kConvolutionShare = 0.35, kPeakWindow = 0.02;
constexpr double kDtypeShares = kGemmShare + kAttentionShare + kConvolutionShare + 3 * kPeakWindow;
constexpr double kCopyShare = 0.20, kPackShare = 0.25, kTokenShare = 0.15;
constexpr double kInt8Share = 0.07;  // for packing; the multiplications share the time of those in bf16
constexpr double kShares = 2 * kDtypeShares + kInt8Share + kCopyShare + kPackShare + kTokenShare;
static_assert(kShares <= kFirstUseSeconds);

// A size must be able to run once to warm up and a few times to be timed, at a rate that kernels reach easily; the rest
// of the time is for creating the inputs.
constexpr double kRuns = 4, kEasyFraction = 0.5;
constexpr int64_t kGemmRows[] = {1024, 512, 256, 128, 64, 16};
constexpr int64_t kAttentionTokens[] = {2048, 1024, 512, 256};
constexpr int64_t kConvolutionRows[] = {Convolutions::kRows, 6, 3};

// Share of the cores' time: below it, other programs were running.
constexpr double kIdle = 0.9, kUsable = 0.5;
constexpr int kProbes = 3;
constexpr double kMostOver = 0.3;  // seconds beyond the budget
// A machine that is always busy is not measured again and again.
constexpr int kMostMeasurements = 5;

class Meter {
 public:
  explicit Meter(const Heartbeat& heartbeat)
      : heartbeat_(heartbeat), stream_(available_threads()), budget_(kFirstUseSeconds, kShares, wall_seconds) {}

  Figures measure() {
    probe();
    for (const DType dtype : {DType::kBF16, DType::kF32}) measure(dtype);
    memory();
    figures_.core_share = shares_ / windows_;
    check_figures(figures_);
    return figures_;
  }

 private:
  std::vector<double> best_each(double deadline, std::span<const std::function<double()>> works) const {
    const std::vector<double> rates = best_rates(budget_.clock(), deadline, works, heartbeat_);
    // A run may take much longer than its size suggests if threads wait for cores.
    if (budget_.left() < -kMostOver) fail("others use its cores");
    return rates;
  }
  double best(double deadline, const std::function<double()>& work) const { return best_each(deadline, {&work, 1})[0]; }
  double left(double deadline) const { return deadline - budget_.clock()(); }

  // If other programs use most of the cores, figures are meaningless and take long.
  void probe() {
    double share = 0;
    for (int i = 0; i < kProbes; ++i) {
      const Peak window = measure_peak(isa_of_kernel(AttentionWork(stream_, DType::kF32, 1, 1).implementation()),
                                       stream_.team(), kPeakWindow);
      share = std::max(share, window.flops / window.cpu_flops);
    }
    if (share < kUsable) fail("others have {:.0f} % of its cores", 100 * (1 - share));
  }

  // During every figure, so that the share of the cores is known for all of them.
  void peak(Isa isa, DtypeRates& rates) {
    const Peak window = measure_peak(isa, stream_.team(), kPeakWindow);
    rates.peak = std::max(rates.peak, window.flops);
    shares_ += window.flops / window.cpu_flops;
    ++windows_;
  }

  void measure(DType dtype) {
    const Isa isa = isa_of_kernel(AttentionWork(stream_, dtype, 1, 1).implementation());
    const bool bf16 = dtype == DType::kBF16;
    DtypeRates& rates = bf16 ? figures_.bf16 : figures_.float32;
    const auto fits = [&](std::span<const int64_t> sizes, double deadline, const std::function<double(int64_t)>& flop) {
      const double rate = kEasyFraction * rates.peak;
      return size_within(
          sizes, [&](int64_t size) { return flop(size) / rate; }, kRuns, left(deadline));
    };
    {
      const double deadline = budget_.deadline(kGemmShare + (bf16 ? kInt8Share : 0) + kPeakWindow);
      peak(isa, rates);
      const LayerWeights weights(stream_.team(), dtype);
      std::optional<LayerWeights> int8_weights;
      if (bf16) int8_weights.emplace(stream_.team(), DType::kI8);
      rates.gemm_rows = fits(kGemmRows, deadline, [](int64_t rows) { return LayerGemms::flop(rows); });
      LayerGemms gemms(stream_, weights, rates.gemm_rows);
      std::vector<std::function<double()>> works{[&] { return gemms.all(); }};
      std::optional<LayerGemms> int8;
      if (bf16) {
        int8.emplace(stream_, *int8_weights, rates.gemm_rows);
        works.emplace_back([&] { return int8->all(); });
      }
      const std::vector<double> found = best_each(deadline, works);
      rates.gemm = found[0];
      if (bf16) rates.int8_gain = found[1] / found[0];
      if (bf16) tokens(weights);
    }
    {
      const double deadline = budget_.deadline(kAttentionShare + kPeakWindow);
      peak(isa, rates);
      rates.attention_tokens = fits(kAttentionTokens, deadline, [&](int64_t tokens) {
        return (bf16 ? 3 : 2) * AttentionWork::flop(stream_.team().size(), tokens, tokens);
      });
      const int64_t tokens = rates.attention_tokens;
      AttentionWork online(stream_, dtype, tokens, tokens);
      AttentionWork fixed(stream_, dtype, tokens, tokens, {.softmax = kernels::Softmax::kFixedMax});
      std::vector<std::function<double()>> works{[&] { return online.attend(); }, [&] { return fixed.attend(); }};
      std::optional<AttentionWork> int8;
      if (bf16) {
        int8.emplace(stream_, dtype, tokens, tokens, AttentionVariant{.int8 = true});
        works.emplace_back([&] { return int8->attend(); });
      }
      const std::vector<double> found = best_each(deadline, works);
      rates.attention = found[0];
      rates.fixed_max_gain = found[1] / found[0];
      if (int8) rates.int8_attention_gain = found[2] / found[0];
    }
    const double deadline = budget_.deadline(kConvolutionShare + kPeakWindow);
    peak(isa, rates);
    Convolutions convolutions(stream_, dtype, fits(kConvolutionRows, deadline, Convolutions::flop));
    rates.convolution = best(deadline, [&] { return convolutions.all(); });
  }

  void tokens(const LayerWeights& weights) {
    const double deadline = budget_.deadline(kTokenShare);
    TokenPasses passes(stream_, weights);
    AttentionWork one(stream_, weights.dtype(), 1, 1);
    const double rest = left(deadline) / 2;
    figures_.layer_overhead = 1 / best(deadline - rest, [&] {
                                passes.next(1);
                                one.attend();  // self-attention and cross-attention
                                one.attend();
                                return 1.0;
                              });
    figures_.token_seconds = 1 / best(deadline, [&] { return passes.next(TokenPasses::kChunk); });
  }

  void memory() {
    // More than the caches hold, but no gigabytes on many cores.
    constexpr int64_t kCopied = int64_t{512} << 20, kMostCopied = int64_t{32} << 20, kLeastCopied = int64_t{4} << 20;
    constexpr int64_t kLeastMatrices = 8, kMostMatrices = 32;
    constexpr double kWindow = 0.03;
    const int threads = stream_.team().size();
    const auto bytes = static_cast<size_t>(std::clamp(kCopied / threads, kLeastCopied, kMostCopied));
    double deadline = budget_.deadline(kCopyShare);
    do figures_.copy = std::max(figures_.copy, 2 * measure_copy_bandwidth(threads, bytes, kWindow));
    while (left(deadline) > 2 * kWindow);
    deadline = budget_.deadline(kPackShare);
    const StoredMatrices stored(std::clamp<int64_t>(threads, kLeastMatrices, kMostMatrices));
    figures_.host_read = best(deadline, [&] {
      stored.pack(stream_.team());
      return static_cast<double>(stored.bytes());
    });
  }

  const Heartbeat& heartbeat_;
  Stream stream_;
  Budget budget_;
  Figures figures_;
  double shares_ = 0;
  int windows_ = 0;
};

bool settled(const Remembered& remembered) {
  return remembered.figures.core_share >= kIdle || remembered.measurements >= kMostMeasurements;
}

// What this process has measured: it never measures twice, even if the figures cannot be stored or the machine was
// busy.
struct Measured {
  std::filesystem::path path;
  Remembered figures;
};
std::mutex measured_mutex;
std::optional<Measured> measured;

}  // namespace

double Budget::left() const { return end_ - clock_(); }

double Budget::deadline(double share) {
  const double now = clock_(), all = std::max(share, shares_);
  shares_ -= share;
  return now + std::max(0.0, end_ - now) * share / all;
}

std::vector<double> best_rates(const Clock& clock, double deadline, std::span<const std::function<double()>> works,
                               const Heartbeat& heartbeat) {
  std::vector<double> best(works.size());
  double once = 0;
  int rounds = 0;
  do {
    once = 0;
    for (size_t i = 0; i < works.size(); ++i) {
      const double begin = clock(), amount = works[i]();
      const double seconds = std::max(1e-9, clock() - begin);
      // The first round was the warm-up.
      best[i] = rounds == 1 ? amount / seconds : std::max(best[i], amount / seconds);
      once += seconds;
      if (heartbeat) heartbeat();
    }
    ++rounds;
  } while (clock() + once <= deadline);
  return best;
}

int64_t size_within(std::span<const int64_t> sizes, const std::function<double(int64_t)>& seconds_of, double times,
                    double seconds) {
  const auto found =
      std::find_if(sizes.begin(), sizes.end(), [&](int64_t size) { return times * seconds_of(size) <= seconds; });
  return found != sizes.end() ? *found : sizes.back();
}

Figures measure_machine(const Heartbeat& heartbeat) { return Meter(heartbeat).measure(); }

bool may_measure() {
  const char* value = std::getenv("ZOETROPE_MEASURE");
  if (value == nullptr || *value == 0) return true;
  if (std::string_view(value) != "no")
    fail("ZOETROPE_MEASURE={}: 'no' is the one value it takes, and leaves this machine unmeasured", value);
  return false;
}

std::optional<KnownMachine> known_machine(const FirstUse& use, std::vector<std::string>& notes) {
  const MachineKey key = this_machine();
  const std::filesystem::path path = figures_path(key);
  const std::lock_guard lock(measured_mutex);
  std::optional<Remembered> remembered = recall(path, key);
  const bool here = measured && measured->path == path;
  if (!remembered && here) remembered = measured->figures;
  KnownMachine known;
  if (!here && use.worth_measuring && may_measure() && !(remembered && settled(*remembered))) {
    try {
      const double begin = wall_seconds();
      const Figures figures = use.measure(use.heartbeat);
      const double seconds = wall_seconds() - begin;
      remembered = {remembered ? best_of(remembered->figures, figures) : figures, utc_now_text(),
                    remembered ? remembered->measurements + 1 : 1};
      measured = {path, *remembered};
      known.notes.push_back(fmt::format("this machine was measured just now, in {:.1f} s", seconds));
    } catch (const std::exception& error) {
      notes.push_back(fmt::format("this machine was not measured: {}", error.what()));
    }
    if (!known.notes.empty()) {
      try {
        remember(path, key, *remembered);
      } catch (const Error& error) {
        known.notes.push_back(fmt::format("that cannot be remembered: {}", error.what()));
      }
    }
  }
  if (!remembered) return std::nullopt;
  known.figures = remembered->figures;
  known.key = key;
  known.date = remembered->date;
  if (!settled(*remembered)) {
    known.notes.push_back(
        fmt::format("others had {:.0f} % of the cores meanwhile: it is measured again at the next use",
                    100 * (1 - std::min(1.0, remembered->figures.core_share))));
  }
  return known;
}

void doubt_machine() {
  const MachineKey key = this_machine();
  const std::filesystem::path path = figures_path(key);
  std::optional<Remembered> remembered = recall(path, key);
  if (!remembered) return;
  remembered->figures.core_share = 0;
  remembered->measurements = 0;
  try {
    remember(path, key, *remembered);
  } catch (const Error&) {
    // If it cannot be written, the old contents stay.
  }
}

}  // namespace zoetrope::machine
