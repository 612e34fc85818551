// The keys of `zoetrope attention` and what can be said about them before any data is seen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/tensor.h"

#include "base/options.h"

namespace zoetrope::cli {

struct AttentionOptions {
  std::string input;   // safetensors file with q, k, v
  std::string output;  // safetensors file for o
  std::string shape;   // BxSxHxD of random data, instead of a file
  std::optional<int64_t> kv;
  std::string key_lengths;  // of random data: one number, or one a batch entry
  std::string dtype;        // bf16 or float32; empty: the file's, else bf16
  int64_t seed = 0;
  attention::StrategyOptions strategy;
  std::string hardware;  // the profile that the planner chooses with
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

// What contradicts itself, and files that cannot be what they are asked to be. Throws Error.
void check_options(const AttentionOptions& options);
// The files that the run will write can be made now, and not only after it. Throws Error; leaves nothing behind.
void check_files_can_be_written(const AttentionOptions& options);

Shape parse_shape(const std::string& text);  // "1x4096x8x128" as [B, S, H, D]
// "7" for every entry, or "5,7,9" for a batch of three; each in [0, keys].
std::vector<int64_t> parse_key_lengths(const std::string& text, int64_t batch, int64_t keys);

// How the ranks share the work, with the forced implementation filled in; the layout by rule.
attention::Strategy strategy_of(const AttentionOptions& options, int ranks, int64_t heads);

}  // namespace zoetrope::cli
