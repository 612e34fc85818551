// The order of the measurements, and the profile from their results.
#include "bench/calibrate.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/words.h"
#include "bench/calibrate_measure.h"
#include "bench/words.h"
#include "comm/launcher.h"
#include "device/thread_team.h"
#include "kernels/cpu_features.h"
#include "pipeline/ranks/hosts.h"
#include "pipeline/settings/dtype_word.h"
#include "planner/available.h"
#include "planner/calibrated.h"

namespace zoetrope::bench {
namespace {

using planner::HardwareProfile;
using planner::LinkLevel;

// By default: more ranks give no new information, because a host's figures are rescaled to any number of ranks.
constexpr int kMostDefaultRanks = 4;
// With more, a window is too short for every rank to get its share of a core.
constexpr int kMostRanksACore = 16;
constexpr int kMostRanks = 4096;
// Significant digits of a figure: further ones are noise.
constexpr int kDigits = 4;

// Via decimals, so that a file shows no more digits.
double rounded(double value) { return std::strtod(fmt::format("{:.{}g}", value, kDigits).c_str(), nullptr); }

std::string spread_text(double spread) { return spread < 0 ? std::string() : fmt::format(" ± {:.1f} %", 100 * spread); }

// A job's measurements in their order, and the resulting profile.
class Calibration {
 public:
  Calibration(const CalibrationJob& job, const Progress& progress, const Found& found)
      : job_(job), progress_(progress), found_(found) {}

  Calibrated run() {
    HardwareProfile& profile = result_.profile;
    profile.name = "calibrated";
    profile.devices = job_.ranks();
    profile.devices_per_host = job_.ranks_per_host;
    profile.calibration =
        HardwareProfile::Calibration{kernels::cpu_model(), job_.hosts, job_.ranks(), job_.threads, utc_now_text()};
    profile.description =
        fmt::format("{}, {} of {} of {}, as measured", profile.calibration->cpu, counted(job_.hosts, "host"),
                    counted(job_.ranks_per_host, "rank"), counted(job_.threads, "thread"));
    for (const DType dtype : {DType::kBF16, DType::kF32}) compute(dtype);
    copy_missing();
    memory();
    links();
    profile.chunk_overlap = 1;
    remark("chunk_overlap",
           "the cost of a transfer for concurrent compute is in the links' overlap; nothing else was lost");
    if (progress_) progress_("");
    check_hardware(profile, "the measured profile");
    check();
    model_error();
    return std::move(result_);
  }

 private:
  bool leads() const { return job_.world == nullptr || job_.world->rank() == 0; }
  void say(const std::string& what) const {
    if (progress_ && leads()) progress_("calibrate: " + what);
  }
  void found(const std::string& figure, const std::string& value, double spread, const std::string& how) const {
    if (found_ && leads()) found_({figure, value, spread, how});
  }
  void remark(const std::string& key, const std::string& text) { result_.remarks.emplace_back(key, text); }

  // body() on every rank. Its results are the same on all, by all_reduce; where ranks are threads, only one of them
  // stores them (keeps()).
  void on_ranks(const std::function<void(CalibrationRank&)>& body) { on_ranks(job_.ranks(), job_.threads, body); }
  void on_ranks(int ranks, int threads, const std::function<void(CalibrationRank&)>& body) {
    const auto with = [&](comm::Communicator& world) {
      CalibrationRank rank(world, threads, job_.seconds);
      body(rank);
    };
    if (job_.world != nullptr) {
      with(*job_.world);
      return;
    }
    comm::RankOptions options;
    options.timeout_seconds = job_.comm_timeout;
    comm::run_ranks(ranks, with, options);
  }

  bool keeps(const CalibrationRank& rank) const { return job_.world != nullptr || rank.leads(); }

  bool chosen(DType dtype) const {
    return std::any_of(job_.dtypes.begin(), job_.dtypes.end(),
                       [&](const std::string& name) { return pipeline::dtype_of(name) == dtype; });
  }

  void compute(DType dtype) {
    if (!chosen(dtype)) return;
    const std::string name = dtype == DType::kBF16 ? "bf16" : "float32";
    say(name + ": weights");
    DtypeFigures figures;
    {
      ThreadTeam team(job_.cores);
      const machine::LayerWeights weights(team, dtype);
      std::optional<machine::LayerWeights> int8;
      if (dtype == DType::kBF16) int8.emplace(team, DType::kI8);
      on_ranks([&](CalibrationRank& rank) {
        ComputeNotes notes;
        notes.say = [&](const std::string& what) {
          if (rank.leads()) say(what);
        };
        notes.found = [&](const std::string& figure, const std::string& at, const std::string& value, double spread) {
          if (rank.leads()) found(figure, value, spread, at);
        };
        DtypeFigures mine = measure_dtype(rank, weights, int8 ? &*int8 : nullptr, notes);
        if (keeps(rank)) figures = std::move(mine);
      });
    }
    fill(name, dtype, figures);
  }

  // More rows or keys at a time are never slower: adjacent points that decrease are noise, and are averaged until none
  // does (isotonic regression).
  static MeasuredCurve rising(const MeasuredCurve& points) {
    struct Pool {
      double sum = 0;
      size_t count = 0;
      double mean() const { return sum / static_cast<double>(count); }
    };
    std::vector<Pool> pools;
    for (const auto& point : points) {
      pools.push_back({point.second.value, 1});
      while (pools.size() > 1 && pools[pools.size() - 2].mean() > pools.back().mean()) {
        pools[pools.size() - 2].sum += pools.back().sum;
        pools[pools.size() - 2].count += pools.back().count;
        pools.pop_back();
      }
    }
    MeasuredCurve result = points;
    size_t at = 0;
    for (const Pool& pool : pools)
      for (size_t i = 0; i < pool.count; ++i) result[at++].second.value = pool.mean();
    return result;
  }

  static planner::Curve curve(const MeasuredCurve& points, double factor) {
    std::vector<planner::Curve::Point> result;
    for (const auto& [size, value] : points)
      result.push_back({static_cast<double>(size), rounded(value.value * factor)});
    return planner::Curve(std::move(result));
  }

  // Fractions of the multiply-adds that were timed next to them. A CPU may have faster ones that only a library uses
  // (AMX in oneDNN): then the fastest multiplication is the peak.
  void fill(const std::string& name, DType dtype, const DtypeFigures& figures) {
    const MeasuredCurve gemm = rising(figures.gemm), attention = rising(figures.attention);
    MeasuredCurve all_keys = figures.attention_keys;
    all_keys.emplace_back(kLongKeys, figures.attention.back().second);
    const MeasuredCurve keys = rising(all_keys);
    double best = 1;
    for (const MeasuredCurve* points : {&gemm, &attention, &keys, &figures.attention_fixed_max})
      for (const auto& point : *points) best = std::max(best, point.second.value);
    for (const auto& point : figures.convolution)
      best = std::max(best, point.second.value / planner::ComputeFigures::kMostConvolution);
    planner::ComputeFigures& to = dtype == DType::kBF16 ? result_.profile.bf16 : result_.profile.float32;
    to.peak = rounded(figures.peak.value * best);
    to.gemm = curve(gemm, 1 / best);
    const double most_rows = figures.gemm.back().second.value;
    if (!figures.gemm_int8.empty()) to.int8_gain = rounded(figures.gemm_int8.back().second.value / most_rows);
    to.attention = curve(attention, 1 / best);
    to.attention_keys = curve(keys, 1 / keys.back().second.value);
    const double online = figures.attention.back().second.value,
                 fixed = figures.attention_fixed_max.back().second.value;
    to.fixed_max_gain = rounded(std::min(fixed / online, 0.999 / to.attention.points().back().y));
    if (!figures.attention_int8.empty())
      to.int8_attention_gain = rounded(figures.attention_int8.back().second.value / online);
    to.convolution = rounded(figures.convolution.back().second.value / best);
    remark(name + ".peak",
           best > 1 ? fmt::format("the fastest matrix multiplication; multiply-adds of {} alone {:.1f} GFLOP/s",
                                  figures.peak_of, figures.peak.value * 1e-9)
                    : fmt::format("multiply-adds of {} on registers, all ranks at once{}", figures.peak_of,
                                  spread_text(figures.peak.spread)));
    remark(name + ".gemm",
           fmt::format("matrix multiplications of a layer of width {}, relative to the peak; a rank with more "
                       "rows divides them into chunks{}",
                       machine::kLayerWidth, worst(figures.gemm)));
    for (const auto& [rows, value] : figures.gemm_int8)
      remark(name + ".int8_gain", fmt::format("{:.1f} % of the peak instead of {:.1f} %, {} rows{}", 100 * value.value,
                                              100 * most_rows, rows, spread_text(value.spread)));
    for (const auto& [keys_of, value] : figures.attention_int8)
      remark(name + ".int8_attention_gain",
             fmt::format("{:.1f} % of the peak instead of {:.1f} %, {} keys{}", 100 * value.value, 100 * online,
                         keys_of, spread_text(value.spread)));
    remark(name + ".attention", fmt::format("kernel {} with its tiles, by queries, {} keys{}{}", figures.kernel,
                                            kLongKeys, worst(figures.attention), tiles_text(figures)));
    remark(name + ".attention_keys", fmt::format("{} queries{}", kLongKeys, worst(figures.attention_keys)));
    remark(name + ".fixed_max_gain",
           fmt::format("{:.1f} % of the peak instead of {:.1f} %, {} keys, statistics included", 100 * fixed,
                       100 * online, kLongKeys));
    remark(name + ".convolution",
           fmt::format("3x3x3 with norm and SiLU, 96 and 192 channels{}", worst(figures.convolution)));
    const bool decides = dtype == DType::kBF16 || !chosen(DType::kBF16);
    for (const MeasuredCurve* points : {&figures.gemm, &figures.attention, &figures.attention_keys})
      for (const auto& point : *points) spreads_.push_back(point.second.spread);
    if (!decides) return;
    HardwareProfile& profile = result_.profile;
    profile.token_width = machine::kLayerWidth;
    profile.token_seconds = rounded(figures.token_seconds.value);
    profile.layer_overhead = rounded(figures.layer_overhead.value);
    fold_seconds_ = figures.fold_seconds;
    multiply_adds_ = figures.peak.value;
    remark("token_seconds", fmt::format("the kernels of a layer except matrix multiplications and attention, {}{}",
                                        name, spread_text(figures.token_seconds.spread)));
    remark("layer_overhead", fmt::format("the same kernels and attention on one token, {}{}", name,
                                         spread_text(figures.layer_overhead.spread)));
  }

  static std::string worst(const MeasuredCurve& points) {
    double spread = 0;
    for (const auto& point : points) spread = std::max(spread, point.second.spread);
    return spread_text(spread);
  }
  static std::string tiles_text(const DtypeFigures& figures) {
    std::vector<std::string> tiles;
    for (const auto& [rows, value] : figures.tile_rows) tiles.push_back(fmt::format("{} {:.3f}", rows, value.value));
    return tiles.empty() ? "" : fmt::format("; tiles of other rows: {}", fmt::join(tiles, ", "));
  }

  // A profile has figures of both dtypes.
  void copy_missing() {
    HardwareProfile& profile = result_.profile;
    const auto copy = [&](const char* name, planner::ComputeFigures& to, const char* other,
                          const planner::ComputeFigures& from, DType dtype) {
      if (chosen(dtype)) return;
      to = from;
      Measured peak;
      std::string of;
      on_ranks([&](CalibrationRank& rank) {
        const Isa isa = calibrated_isa(rank, dtype);
        std::vector<double> peaks;
        for (int i = 0; i < kRepeats; ++i) peaks.push_back(rank.peak(isa));
        if (!keeps(rank)) return;
        peak = measured(peaks);
        of = isa_name(isa);
      });
      to.peak = rounded(peak.value);
      found(fmt::format("{}.peak", name), fmt::format("{:.1f} GFLOP/s", peak.value * 1e-9), peak.spread, of);
      remark(fmt::format("{}.peak", name), fmt::format("multiply-adds of {}{}", of, spread_text(peak.spread)));
      remark(fmt::format("{}.gemm", name),
             fmt::format("not measured; this and the following figures are those of {}", other));
    };
    copy("bf16", profile.bf16, "float32", profile.float32, DType::kBF16);
    copy("float32", profile.float32, "bf16", profile.bf16, DType::kF32);
  }

  void memory() {
    say("memory");
    Measured copies, reads;
    double free = 0;  // of the host with the least
    const std::vector<planner::MemoryLimit> limits = planner::memory_limits({});
    if (limits.empty()) fail("calibrate: the memory of this machine cannot be read from /proc");
    const bool bound = job_.rank_cores < job_.cores;
    on_ranks([&](CalibrationRank& rank) {
      const Measured copy = measure_memory(rank);
      HostReaders readers;
      readers.hosts = job_.hosts;
      readers.readers = bound ? job_.ranks_per_host : 1;
      readers.threads = bound ? std::max(1, job_.cores / job_.ranks_per_host) : job_.cores;
      readers.reads = bound || rank.world().rank() % job_.ranks_per_host == 0;
      const Measured read = measure_host_read(rank, readers);
      const double least = rank.least(static_cast<double>(limits[0].available.count()));
      if (!keeps(rank)) return;
      free = least;
      copies = copy;
      reads = read;
    });
    HardwareProfile& profile = result_.profile;
    profile.memory_bandwidth = rounded(copies.value);
    profile.host_read = rounded(reads.value);
    profile.merge_passes = rounded(fold_seconds_ * copies.value / (machine::kLayerHeadDim * sizeof(float)));
    profile.device_memory = planner::Bytes(static_cast<int64_t>(free) / job_.ranks_per_host / 1000000 * 1000000);
    found("memory", profile.device_memory.text(), -1, "of a rank");
    found("memory_bandwidth", fmt::format("{:.2f} GB/s", copies.value * 1e-9), copies.spread, "read and written");
    found("host_read", fmt::format("{:.2f} GB/s", reads.value * 1e-9), reads.spread, "from the page cache, packed");
    found("merge_passes", fmt::format("{:.2f}", profile.merge_passes), -1, "over a ring block's output");
    remark("memory", job_.hosts > 1 ? "a rank's part of the host with the least when this was measured"
                                    : fmt::format("a rank's part of {} when this was measured", limits[0].what));
    remark("memory_bandwidth",
           fmt::format("of a rank, copies of 32 MB per thread, read and written, all ranks at once{}",
                       spread_text(copies.spread)));
    remark("host_read",
           fmt::format("from a mapped file in the page cache to packed weights, all cores of a host; the first "
                       "read is slower where the disk is{}",
                       spread_text(reads.spread)));
    remark("merge_passes", "cost of folding blocks of 512 keys into a state, compared with attending each of them");
  }

  void links() {
    LinkFigures within, between;
    const bool has_within = job_.ranks_per_host > 1 || job_.world == nullptr, has_between = job_.hosts > 1;
    if (has_within) {
      say("transfers within a host");
      // One rank alone has no peer: two that share its threads show what more ranks would get.
      const int ranks = std::max(2, job_.ranks());
      const int threads = job_.ranks() > 1 ? job_.threads : std::max(1, job_.threads / 2);
      on_ranks(ranks, threads, [&](CalibrationRank& rank) {
        HostLayout layout{1, ranks, 0, rank.world().rank()};
        if (job_.world != nullptr) layout = find_hosts(rank.world());
        AttentionWork work(rank.stream(), DType::kF32, kBesideRows, kBesideRows);
        const LinkFigures mine = measure_within_host(rank, layout, job_.world != nullptr ? &work : nullptr);
        if (keeps(rank)) within = mine;
      });
      add_level(planner::kHostLevel, job_.ranks_per_host, within);
    }
    if (has_between) {
      say("transfers between hosts");
      on_ranks([&](CalibrationRank& rank) {
        AttentionWork work(rank.stream(), DType::kF32, kBesideRows, kBesideRows);
        const LinkFigures mine = measure_between_hosts(rank, find_hosts(rank.world()), work);
        if (keeps(rank)) between = mine;
      });
      add_level(planner::kClusterLevel, job_.hosts, between);
    }
  }

  void add_level(const char* name, int members, const LinkFigures& figures) {
    const bool inside = name == std::string_view(planner::kHostLevel);
    LinkLevel level;
    level.name = name;
    level.members = members;
    level.kind = inside ? planner::LinkKind::kBus : planner::LinkKind::kSwitch;
    level.bandwidth = rounded(figures.bandwidth.value);
    level.latency = rounded(figures.latency.value);
    level.full_duplex = figures.full_duplex;
    level.overlap = rounded(figures.overlap.value);
    result_.profile.links.push_back(level);
    const std::string key = fmt::format("links.{}.", name);
    const double megabytes = static_cast<double>(figures.bytes) * 1e-6;
    const std::string how = inside ? "all ranks together" : "a host's port, one way";
    const std::string one =
        inside ? fmt::format("one rank alone {:.2f} GB/s", figures.one_way.value * 1e-9)
               : fmt::format("nothing the other way {:.3f} GB/s, one rank of each host alone {:.3f} GB/s",
                             figures.one_way.value * 1e-9, figures.one_rank.value * 1e-9);
    found(key + "bandwidth", fmt::format("{:.3f} GB/s", figures.bandwidth.value * 1e-9), figures.bandwidth.spread,
          fmt::format("{}; {}", how, one));
    found(key + "latency", fmt::format("{:.1f} us", figures.latency.value * 1e6), figures.latency.spread,
          "64 bytes, all ranks");
    const bool copied = inside && job_.world == nullptr;
    found(key + "overlap", fmt::format("{:.0f} %", 100 * figures.overlap.value), copied ? -1 : figures.overlap.spread,
          copied ? "receivers copy, on their own time" : "during attention");
    if (!inside) found(key + "full_duplex", figures.full_duplex ? "true" : "false", -1, "both ways at once");
    remark(key + "bandwidth", fmt::format("{}, {} with messages of {:.0f} MB, all ranks at once{}; {}", how,
                                          job_.world != nullptr ? "MPI" : "threads", megabytes,
                                          spread_text(figures.bandwidth.spread), one));
    remark(key + "latency",
           fmt::format("64 bytes to a neighbour, all ranks at once{}", spread_text(figures.latency.spread)));
    remark(key + "overlap", copied ? "receivers copy, on their own time"
                                   : fmt::format("from how much a concurrent transfer slows attention, ± {:.0f} points",
                                                 100 * figures.overlap.spread));
  }

  // The spread of repeats and the error of the check: times closer than this are ties.
  void model_error() {
    constexpr double kLeastError = 0.05, kMostError = 0.25;
    const double noise = median(spreads_);
    double wrong = 0;
    for (const SelfCheck& one : result_.checks) wrong = std::max(wrong, std::abs(one.predicted / one.measured - 1));
    HardwareProfile& profile = result_.profile;
    profile.model_error = rounded(std::clamp(std::max(noise, wrong), kLeastError, kMostError));
    const std::string how =
        fmt::format("repeats ± {:.1f} %, a layer's attention {:.1f} % off", 100 * noise, 100 * wrong);
    found("model_error", fmt::format("{:.1f} %", 100 * profile.model_error), -1, how);
    remark("model_error",
           fmt::format("the larger of: {}; {:.0f} to {:.0f} %", how, 100 * kLeastError, 100 * kMostError));
  }

  void check() {
    say("a layer's attention");
    const DType dtype = chosen(DType::kBF16) ? DType::kBF16 : DType::kF32;
    on_ranks([&](CalibrationRank& rank) {
      std::vector<SelfCheck> checks =
          check_profile(rank, rank.leads() ? &result_.profile : nullptr, dtype, multiply_adds_);
      if (rank.leads()) result_.checks = std::move(checks);
    });
    if (progress_ && leads()) progress_("");
  }

  static constexpr int64_t kBesideRows = 256;

  const CalibrationJob& job_;
  const Progress& progress_;
  const Found& found_;
  Calibrated result_;
  double fold_seconds_ = 0, multiply_adds_ = 0;  // of the dtype that decides
  std::vector<double> spreads_;
};

}  // namespace

OptionSet describe(CalibrateSettings& settings) {
  OptionSet options;
  options
      .integer("ranks", settings.ranks, {1, kMostRanks},
               "number of ranks, each a thread; unset: the cores, at most 4; under mpirun always its ranks")
      .integer("threads", settings.threads, {1, kMostRanks}, "compute threads per rank; unset: its share of the cores")
      .number("seconds", settings.seconds, {0.001, 60},
              fmt::format("duration of a measurement, each of which is repeated at least {} times", kRepeats).c_str())
      .text("dtype", settings.dtype, "bf16, float32 or all; only the peak is measured of a dtype that is left out")
      .number("comm_timeout", settings.comm_timeout, {0.01, 1e7}, "seconds that any wait for another rank may last");
  return options;
}

CalibrationJob calibration_job(const CalibrateSettings& settings, comm::Communicator* world) {
  CalibrationJob job;
  job.world = world;
  job.seconds = settings.seconds;
  job.comm_timeout = settings.comm_timeout;
  job.dtypes = choose_dtypes("dtype", settings.dtype);
  job.cores = job.rank_cores = available_threads();
  if (world != nullptr) {
    const HostLayout layout = find_hosts(*world);
    if (settings.ranks && *settings.ranks != world->size()) {
      fail("ranks={}: this job has {} ranks, and all of them are measured; leave ranks out, or start another number",
           *settings.ranks, world->size());
    }
    job.hosts = layout.hosts;
    job.ranks_per_host = layout.ranks_per_host;
    job.cores = pipeline::cores_of_hosts(*world);
    // The least of all, so that every rank agrees.
    job.rank_cores = static_cast<int>(world->all_reduce_min(job.rank_cores));
    job.threads = static_cast<int>(world->all_reduce_min(comm::process_threads(settings.threads)));
  } else {
    job.ranks_per_host = static_cast<int>(settings.ranks.value_or(std::min(job.cores, kMostDefaultRanks)));
    job.threads = static_cast<int>(settings.threads.value_or(std::max(1, job.cores / job.ranks_per_host)));
  }
  if (job.threads > job.rank_cores) {
    fail(
        "threads={}: a rank can use {} on this machine, and more threads would only measure their own "
        "contention; {} is the most",
        job.threads, counted(job.rank_cores, "core"), job.rank_cores);
  }
  if (job.ranks_per_host * job.threads > job.cores * kMostRanksACore) {
    fail(
        "ranks={}: with {} each they share {}, and the figures would measure the system's scheduler; "
        "{} is the most",
        job.ranks_per_host, counted(job.threads, "thread"), counted(job.cores, "core"),
        job.cores * kMostRanksACore / job.threads);
  }
  return job;
}

Calibrated calibrate(const CalibrationJob& job, const Progress& progress, const Found& found) {
  return Calibration(job, progress, found).run();
}

}  // namespace zoetrope::bench
