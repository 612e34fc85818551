// `zoetrope attention`: its options (attention_options.cpp), its data (attention_data.cpp), the run (attention.cpp) and
// its measurements as text and JSON (attention_report.cpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/index_range.h"

#include "base/options.h"
#include "bench/attention_run.h"
#include "bench/statistics.h"
#include "pipeline/planning/rank_plan.h"

namespace zoetrope::cli {

struct AttentionOptions {
  std::string input;   // safetensors file with q, k, v
  std::string output;  // safetensors file for o
  std::string shape;   // BxSxHxD of random data, instead of a file
  std::optional<int64_t> kv;
  std::string key_lengths;  // of random data: one number, or one per batch entry
  std::string dtype;        // bf16 or float32; empty: the file's, else bf16
  int64_t seed = 0;
  attention::StrategyOptions strategy;
  std::string hardware;  // the profile that the planner uses
  std::string implementation;
  std::optional<double> scale;
  std::optional<int64_t> ranks;
  std::optional<int64_t> threads;
  double comm_timeout = 300;
  int64_t repeat = 1;
  bool log_sum_exp = false;
  bool reference = false;
  std::string json;
  std::string trace;
};
OptionSet describe_options(AttentionOptions& options);
void check_options(const AttentionOptions& options);  // throws Error for contradictions and files that clash
// Throws Error, before the run, for output files that cannot be written; creates nothing.
void check_files_can_be_written(const AttentionOptions& options);

Shape parse_shape(const std::string& text);  // "1x4096x8x128" as [B, S, H, D]
// "7" for every entry, or "5,7,9" for a batch of three; each in [0, keys].
std::vector<int64_t> parse_key_lengths(const std::string& text, int64_t batch, int64_t keys);
// With the forced implementation, if any; open fields of the layout are filled by rule.
attention::Strategy strategy_of(const AttentionOptions& options, DType dtype, int ranks, int64_t heads);

// The part of the data that this process computes: the tokens of one rank, or of all where the ranks are its threads.
struct ProcessPart {
  int rank = 0, ranks = 1;
};
// Random data are allocated, but not filled. Throws Error for what is missing, and for shapes, dtypes and masks that do
// not fit, naming file and tensor.
bench::AttentionData open_attention_data(const AttentionOptions& options, const ProcessPart& part = {});
// Standard normal numbers, each a function of the seed, the tensor and its place in it.
void fill_random(const bench::AttentionData& data, int64_t seed, IndexRange queries, IndexRange keys, ThreadTeam& team);
// One fact per line, as key=value: the comparison of these tells ranks that read different data.
std::string fingerprint(const bench::AttentionData& data);

struct AttentionMeasurement : bench::AttentionMeasurement {
  int ranks = 1;
  int threads = 1;  // per rank
  // The prediction, of rank 0. None for cross-attention, where nothing is to be chosen.
  std::optional<pipeline::RankPlan> planned;

  double seconds_median() const { return bench::median(seconds); }
  double flops() const { return flop / seconds_median(); }
  double median_peak_flops() const { return bench::median(peak_flops); }
};

std::string attention_text(const AttentionMeasurement& measured, const bench::AttentionData& data,
                           const std::optional<bench::Verdict>& errors);
// Never leaves a partial file. attention_json_help() describes the fields.
void write_attention_json(const std::filesystem::path& path, const AttentionMeasurement& measured,
                          const bench::AttentionData& data, const std::optional<bench::Verdict>& errors);
std::string attention_json_help();

}  // namespace zoetrope::cli
