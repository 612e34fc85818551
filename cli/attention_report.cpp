#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/print.h"
#include "base/words.h"
#include "bench/peak.h"
#include "bench/statistics.h"
#include "cli/attention.h"
#include "parallel/layout.h"

namespace zoetrope::cli {
namespace {

std::string seconds_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3f} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

std::string bytes_text(int64_t bytes) {
  if (bytes >= 1'000'000) return fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
  return fmt::format("{} bytes", bytes);
}

std::string mask_text(const bench::AttentionData& data) {
  if (data.mask_kind() == kernels::MaskKind::kNone) return "";
  const int64_t all = data.k.extent(0) * data.key_tokens();
  return fmt::format(", {} of {} keys valid ({})", data.valid_keys(), all,
                     data.key_lengths.empty() ? "key mask" : "key lengths");
}

// A mask under another name would be missed without a word.
std::string unread_text(const bench::AttentionData& data) {
  if (!data.file) return "";
  constexpr const char* kRead[] = {"q", "k", "v", "key_lengths", "key_mask"};
  std::vector<std::string> unread;
  for (const auto& [name, info] : data.file->tensors())
    if (std::find(std::begin(kRead), std::end(kRead), name) == std::end(kRead)) unread.push_back(printable(name));
  if (unread.empty()) return "";
  constexpr size_t kNamed = 3;
  const size_t more = unread.size() - std::min(unread.size(), kNamed);
  unread.resize(unread.size() - more);
  return fmt::format("Not read: {}{}\n", fmt::join(unread, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string errors_text(const bench::Verdict& errors, int64_t tokens) {
  std::string text =
      fmt::format("Against float64: rel_l2 {:.3g}, max_abs {:.3g}, ", errors.relative_l2, errors.max_abs);
  text += errors.rows == tokens ? fmt::format("all {} rows", tokens)
                                : fmt::format("{} evenly spaced rows of {}", errors.rows, tokens);
  if (errors.nonfinite > 0) {
    text += fmt::format("; {} elements of the definition are not finite, of which {} are finite in o", errors.nonfinite,
                        errors.nonfinite_missed);
  }
  if (errors.log_sum_exp_max_abs) text += fmt::format("; log-sum-exp: max_abs {:.3g}", *errors.log_sum_exp_max_abs);
  return text + '\n';
}

// JSON has no infinities: nlohmann writes them as null.
std::vector<double> in_giga(std::vector<double> values) {
  for (double& value : values) value *= 1e-9;
  return values;
}

}  // namespace

std::string attention_text(const AttentionMeasurement& m, const bench::AttentionData& data,
                           const std::optional<bench::Verdict>& errors) {
  const attention::Problem& p = m.problem;
  std::string text = fmt::format("q {} {}", data.q.shape().to_string(), dtype_name(p.dtype));
  if (data.cross()) text += fmt::format(", k and v {}", data.k.shape().to_string());
  text += fmt::format("{}, scale {:.6g}\n", mask_text(data), p.scale) + unread_text(data);
  text += fmt::format("Strategy: {}, {}, {}, {}; {} x {}; kernel {}\n", degrees_text(m.layout),
                      direction_name(m.layout.direction), softmax_name(m.softmax),
                      counted(m.layout.head_chunks, "head chunk"), counted(m.ranks, "rank"),
                      counted(m.threads, "thread"), m.implementation);
  if (m.planned) text += m.planned->text() + "\n";
  text += fmt::format("Time: {} median, {} least of {}", seconds_text(m.seconds_median()),
                      seconds_text(bench::minimum(m.seconds)), m.seconds.size());
  if (m.planned && m.planned->priced()) {
    const double predicted = m.planned->predicted.step.seconds;
    text += fmt::format("; the median is {:+.0f} % off the prediction", 100 * (m.seconds_median() / predicted - 1));
  }
  text += '\n';
  text += fmt::format("Work: {:.4g} GFLOP, {:.1f} GFLOP/s, {:.1f} % of the peak, measured at {:.1f} GFLOP/s ({})\n",
                      m.flop * 1e-9, m.flops() * 1e-9, 100 * m.flops() / m.median_peak_flops(),
                      m.median_peak_flops() * 1e-9, bench::isa_name(bench::isa_of_kernel(m.implementation)));
  text += fmt::format("Tiles: {} fixed, {} online; sent between ranks: {}; longest wait of a rank: {}\n", m.tiles_fixed,
                      m.tiles_online, bytes_text(m.bytes_sent), seconds_text(bench::median(m.wait_seconds)));
  if (m.key_rounding > 0 || m.value_rounding > 0) {
    text += fmt::format("Exchange: keys are off by {:.3g} (relative L2), values by {:.3g}, on the rank with the most\n",
                        m.key_rounding, m.value_rounding);
  }
  if (m.heads_int8 + m.heads_as_computed > 0) {
    text += fmt::format("Int8: {} heads x key blocks, off by {:.3g} (relative L2) in samples; {} in {}\n", m.heads_int8,
                        m.int8_error, m.heads_as_computed, dtype_name(p.dtype));
  }
  if (errors) text += errors_text(*errors, p.tokens);
  return text;
}

void write_attention_json(const std::filesystem::path& path, const AttentionMeasurement& m,
                          const bench::AttentionData& data, const std::optional<bench::Verdict>& errors) {
  nlohmann::ordered_json json{{"seconds_min", bench::minimum(m.seconds)},
                              {"seconds_median", m.seconds_median()},
                              {"gflops", m.flops() * 1e-9},
                              {"peak_gflops", m.median_peak_flops() * 1e-9},
                              {"fraction", m.flops() / m.median_peak_flops()},
                              {"implementation", m.implementation},
                              {"tiles_fixed", m.tiles_fixed},
                              {"tiles_online", m.tiles_online},
                              {"bytes_sent", m.bytes_sent},
                              {"wait_seconds", bench::median(m.wait_seconds)},
                              {"key_rounding", m.key_rounding},
                              {"value_rounding", m.value_rounding},
                              {"heads_int8", m.heads_int8},
                              {"heads_as_computed", m.heads_as_computed},
                              {"int8_error", m.int8_error}};
  if (errors) {
    json["rel_l2"] = errors->relative_l2;
    json["max_abs"] = errors->max_abs;
    json["reference_rows"] = errors->rows;
    if (errors->log_sum_exp_max_abs) json["log_sum_exp_max_abs"] = *errors->log_sum_exp_max_abs;
  }
  json["shape"] = {data.q.extent(0), data.q.extent(1), data.q.extent(2), data.q.extent(3)};
  json["key_tokens"] = data.key_tokens();
  json["valid_keys"] = data.valid_keys();
  json["dtype"] = dtype_name(m.problem.dtype);
  json["ranks"] = m.ranks;
  json["threads_per_rank"] = m.threads;
  json["ulysses"] = m.layout.ulysses;
  json["ring"] = m.layout.ring;
  json["gather"] = m.layout.gather;
  json["ring_direction"] = direction_name(m.layout.direction);
  json["softmax"] = softmax_name(m.softmax);
  json["head_chunks"] = m.layout.head_chunks;
  if (!m.layout.shard_weights.empty()) json["shard_weights"] = m.layout.shard_weights;
  if (m.planned && m.planned->priced()) json["predicted_seconds"] = m.planned->predicted.step.seconds;
  json["flop"] = m.flop;
  json["seconds"] = m.seconds;
  json["peak_gflops_beside"] = in_giga(m.peak_flops);
  write_file(path, json_text(json, 2) + "\n");
}

std::string attention_json_help() {
  return "Fields of the JSON file, each for one run:\n"
         "  seconds_min, seconds_median  over the repeats; a repeat takes as long as its slowest rank. Runs shorter "
         "than\n"
         "                               0.02 s are repeated within a repeat, which is their mean\n"
         "  gflops           4·Sq·D·H for each valid key of a batch entry, over seconds_median, in 10^9 per second\n"
         "  peak_gflops      multiply-adds of the kernel's instruction set (of avx2 for scalar) on the same threads,\n"
         "                   measured before and after each repeat for as long as the repeat (at most 10 s); the "
         "median\n"
         "  fraction         gflops / peak_gflops\n"
         "  implementation   the kernel that was used\n"
         "  tiles_fixed, tiles_online    groups of query rows × key blocks by the softmax used, summed over ranks\n"
         "  bytes_sent       between ranks, summed over ranks\n"
         "  wait_seconds     waiting for others, of the rank that waited longest; the median of the repeats\n"
         "  key_rounding, value_rounding  relative L2 of what kv_exchange_dtype changed, of the rank with the most\n"
         "  heads_int8, heads_as_computed  with attention_dtype=int8: heads × key blocks by what multiplied them, "
         "summed\n"
         "                   over ranks\n"
         "  int8_error       relative L2 by which int8 moved o of a sample, of the head with the most\n"
         "  predicted_seconds  the planner's prediction for what ran; not with kv\n"
         "  rel_l2, max_abs  with reference=true: errors against the definition in float64, of reference_rows tokens\n"
         "  log_sum_exp_max_abs  with log_sum_exp=true too: the largest error of the logarithms\n"
         "and, to identify the run: shape, key_tokens, valid_keys, dtype, ranks, threads_per_rank, ulysses, ring,\n"
         "gather, ring_direction, softmax, head_chunks, shard_weights, flop, and every repeat's seconds and "
         "peak_gflops_beside.\n";
}

}  // namespace zoetrope::cli
