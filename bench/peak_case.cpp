// `bench peak`: multiply-adds per second of every instruction set, and bytes copied per second.
#include "base/error.h"
#include "base/words.h"
#include "bench/cases.h"
#include "bench/peak.h"
#include "bench/statistics.h"
#include "bench/words.h"

namespace zoetrope::bench {
namespace {

constexpr int kWindows = 5;
constexpr int kMostThreads = 4096;

struct Rates {
  std::vector<double> values;
  void add_to(Table& table, const char* what, const char* unit, int threads, Cell bytes, double scale) const {
    table.add({what, int64_t{threads}, std::move(bytes), maximum(values) * scale, median(values) * scale, unit});
  }
};

void add_copies(Table& table, const PeakSettings& settings, int threads, double seconds, const Progress& progress) {
  constexpr CopyKind kKinds[] = {CopyKind::kMemcpy, CopyKind::kStreaming};
  for (const CopyKind kind : kKinds) {
    const char* what = kind == CopyKind::kMemcpy ? "memcpy" : "streaming copy";
    for (const int64_t bytes : parse_byte_sizes("sizes", settings.sizes)) {
      if (progress) progress(fmt::format("{} of {} bytes on {}", what, bytes, counted(threads, "thread")));
      Rates rates;
      for (int i = 0; i < kWindows; ++i) {
        rates.values.push_back(measure_copy_bandwidth(threads, static_cast<size_t>(bytes), seconds, kind));
      }
      rates.add_to(table, what, "GB/s", threads, bytes, 1e-9);
    }
  }
}

}  // namespace

OptionSet describe(PeakSettings& settings) {
  OptionSet options;
  options
      .text("threads", settings.threads, "thread counts, each measured alone; 'all' is all that this process may use")
      .text("sizes", settings.sizes, "bytes that each thread copies at once (K, M, G: powers of 1024)")
      .number("seconds", settings.seconds, {0.001, 60}, "duration per figure, in five windows");
  return options;
}

Section bench_peak(const PeakSettings& settings, const Progress& progress) {
  Section section;
  section.name = "peak";
  section.title = "The machine's limits";
  section.note =
      "Multiply-adds on registers only (a multiply and an add count as two), all threads at once; and bytes copied per "
      "second by all threads together, each byte counted once although it is read and written, every thread in its own "
      "buffers. Best and median of five windows.";
  section.table.columns = {{"what", "what", Format::kText},           {"threads", "threads", Format::kText},
                           {"bytes", "bytes", Format::kBytes},        {"best", "best", Format::kOneDecimal},
                           {"median", "median", Format::kOneDecimal}, {"unit", "unit", Format::kText}};
  const double window = settings.seconds / kWindows;
  for (const int threads : parse_counts("threads", settings.threads, available_threads(), kMostThreads)) {
    ThreadTeam team(threads);
    const std::string where = "on " + counted(threads, "thread");
    for (const Isa isa : all_isas()) {
      if (!isa_available(isa)) continue;
      if (progress) progress(fmt::format("peak of {} {}", isa_name(isa), where));
      Rates rates;
      for (int i = 0; i < kWindows; ++i) rates.values.push_back(measure_peak(isa, team, window).flops);
      const char* unit = multiplies(isa, DType::kI8) ? "Gop/s" : "GFLOP/s";
      rates.add_to(section.table, isa_name(isa), unit, threads, {}, 1e-9);
      section.highlights.emplace_back(fmt::format("{:.0f} {}", maximum(rates.values) * 1e-9, unit),
                                      fmt::format("{} {}", isa_name(isa), where));
    }
    add_copies(section.table, settings, threads, window, progress);
  }
  return section;
}

}  // namespace zoetrope::bench
