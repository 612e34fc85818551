#include "machine/figures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <nlohmann/json.hpp>
#include <vector>

#include "zoetrope/version.h"

#include "base/atomic_file.h"
#include "base/available_cores.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/hash.h"
#include "base/input_file.h"
#include "base/json.h"
#include "kernels/cpu_features.h"

namespace zoetrope::machine {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 6;
constexpr size_t kMostBytes = 1 << 16;  // of a file, more than any has

// Figures beyond these are not a machine's: the file was edited or damaged, or others used the cores meanwhile.
struct Bounds {
  double low, high;
};
constexpr Bounds kFlops{1e8, 1e17}, kBytes{1e7, 1e15}, kSeconds{1e-12, 1}, kGain{0.1, 10};
constexpr int64_t kMostRows = 1'000'000;

template <typename Part>
struct Entry {
  const char* name;
  double Part::*field;
  Bounds bounds;
  bool more_is_better = true;
};
constexpr Entry<DtypeRates> kRates[] = {{"peak", &DtypeRates::peak, kFlops},
                                        {"gemm", &DtypeRates::gemm, kFlops},
                                        {"attention", &DtypeRates::attention, kFlops},
                                        {"convolution", &DtypeRates::convolution, kFlops}};
constexpr Entry<Figures> kFigures[] = {{"copy", &Figures::copy, kBytes},
                                       {"host_read", &Figures::host_read, kBytes},
                                       {"token_seconds", &Figures::token_seconds, kSeconds, false},
                                       {"layer_overhead", &Figures::layer_overhead, kSeconds, false},
                                       {"core_share", &Figures::core_share, {0, 2}}};
struct Size {
  const char* name;
  int64_t DtypeRates::*field;
};
constexpr Size kSizes[] = {{"gemm_rows", &DtypeRates::gemm_rows}, {"attention_tokens", &DtypeRates::attention_tokens}};
struct Gain {
  const char* name;
  double DtypeRates::*field;
};
constexpr Gain kGains[] = {{"int8_gain", &DtypeRates::int8_gain},
                           {"fixed_max_gain", &DtypeRates::fixed_max_gain},
                           {"int8_attention_gain", &DtypeRates::int8_attention_gain}};

nlohmann::json to_json(const DtypeRates& rates) {
  nlohmann::json json;
  for (const auto& entry : kRates) json[entry.name] = rates.*entry.field;
  for (const Size& size : kSizes) json[size.name] = rates.*size.field;
  for (const Gain& gain : kGains) json[gain.name] = rates.*gain.field;
  return json;
}

DtypeRates rates_of(const JsonObject& json) {
  DtypeRates rates;
  for (const auto& entry : kRates)
    rates.*entry.field = json.get_between(entry.name, entry.bounds.low, entry.bounds.high);
  for (const Size& size : kSizes) rates.*size.field = json.get_between<int64_t>(size.name, 1, kMostRows);
  for (const Gain& gain : kGains) rates.*gain.field = json.get_between(gain.name, kGain.low, kGain.high);
  return rates;
}

nlohmann::json to_json(const MachineKey& key) {
  return {{"cpu", key.cpu}, {"cores", key.cores}, {"isa", key.isa}, {"version", key.version}};
}

void check(const std::string& name, double value, const Bounds& bounds) {
  if (!(value >= bounds.low && value <= bounds.high))
    fail("{} was found to be {:.3g}, outside {:g} to {:g}: others probably use its cores", name, value, bounds.low,
         bounds.high);
}

DtypeRates best_of(const DtypeRates& a, const DtypeRates& b) {
  DtypeRates best = a;
  for (const auto& entry : kRates) best.*entry.field = std::max(a.*entry.field, b.*entry.field);
  // A rate belongs to the size at which it was measured, a gain to the rate beside which it was.
  if (b.gemm > a.gemm) {
    best.gemm_rows = b.gemm_rows;
    best.int8_gain = b.int8_gain;
  }
  if (b.attention > a.attention) {
    best.attention_tokens = b.attention_tokens;
    best.fixed_max_gain = b.fixed_max_gain;
    best.int8_attention_gain = b.int8_attention_gain;
  }
  return best;
}

}  // namespace

void check_figures(const Figures& figures) {
  for (const auto& [dtype, rates] : {std::pair("bf16.", &figures.bf16), std::pair("float32.", &figures.float32)}) {
    for (const auto& entry : kRates) check(dtype + std::string(entry.name), rates->*entry.field, entry.bounds);
    for (const Gain& gain : kGains) check(dtype + std::string(gain.name), rates->*gain.field, kGain);
  }
  for (const auto& entry : kFigures) check(entry.name, figures.*entry.field, entry.bounds);
}

Figures best_of(const Figures& a, const Figures& b) {
  Figures best;
  best.bf16 = best_of(a.bf16, b.bf16);
  best.float32 = best_of(a.float32, b.float32);
  for (const auto& entry : kFigures) {
    best.*entry.field =
        entry.more_is_better ? std::max(a.*entry.field, b.*entry.field) : std::min(a.*entry.field, b.*entry.field);
  }
  return best;
}

MachineKey this_machine() {
  const kernels::CpuFeatures& cpu = kernels::cpu_features();
  std::vector<const char*> sets;
  for (const auto& [has, name] :
       {std::pair(cpu.avx2, "avx2"), std::pair(cpu.avx512, "avx512"), std::pair(cpu.avx512_bf16, "avx512_bf16"),
        std::pair(cpu.avx_vnni, "avx_vnni"), std::pair(cpu.avx512_vnni, "avx512_vnni"),
        std::pair(cpu.amx_bf16, "amx_bf16"), std::pair(cpu.amx_int8, "amx_int8")})
    if (has) sets.push_back(name);
  return {kernels::cpu_model(), available_threads(), fmt::to_string(fmt::join(sets, " ")), version()};
}

fs::path figures_path(const MachineKey& key) {
  return in_user_cache(fmt::format("machine-{:016x}.json", fnv1a64(json_text(to_json(key)))));
}

std::optional<Remembered> recall(const fs::path& path, const MachineKey& key) {
  if (path.empty() || !is_there(path)) return std::nullopt;
  try {
    const JsonObject document = JsonObject::parse(read_file(path, kMostBytes, InputFile::Kind::kCache), path.string());
    if (document.get<int64_t>("format") != kFormat || document.object("key").raw() != to_json(key)) return std::nullopt;
    Remembered remembered;
    remembered.date = document.get<std::string>("date");
    remembered.measurements = static_cast<int>(document.get_between<int64_t>("measurements", 0, INT_MAX));
    const JsonObject figures = document.object("figures");
    remembered.figures.bf16 = rates_of(figures.object("bf16"));
    remembered.figures.float32 = rates_of(figures.object("float32"));
    for (const auto& entry : kFigures)
      remembered.figures.*entry.field = figures.get_between(entry.name, entry.bounds.low, entry.bounds.high);
    return remembered;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void remember(const fs::path& path, const MachineKey& key, const Remembered& remembered) {
  if (path.empty()) fail("neither XDG_CACHE_HOME nor HOME names a folder");
  make_parent_folders(path);
  const Figures& figures = remembered.figures;
  nlohmann::json document = {{"format", kFormat},
                             {"key", to_json(key)},
                             {"date", remembered.date},
                             {"measurements", remembered.measurements},
                             {"figures", {{"bf16", to_json(figures.bf16)}, {"float32", to_json(figures.float32)}}}};
  for (const auto& entry : kFigures) document["figures"][entry.name] = figures.*entry.field;
  write_file(path, json_text(document, 1) + "\n");
}

}  // namespace zoetrope::machine
