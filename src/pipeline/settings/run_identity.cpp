#include "pipeline/settings/run_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "attention/strategy_options.h"
#include "base/options.h"
#include "base/words.h"
#include "pipeline/settings/run_settings.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

// They say where a run computes, what it tells and how its file is encoded, and change no latent or frame beyond the
// order of sums. A key that is not here, and not one of the strategy's, decides the video; so do those of kRounding.
constexpr const char* kRounding[] = {"kv_exchange_dtype", "attention_dtype", "attention_int8_limit"};
constexpr const char* kFree[] = {"model",
                                 "weight_cache",
                                 "weights_in_memory",
                                 "weight_memory",
                                 "keep_weights",
                                 "prompts",
                                 "num_videos",
                                 "batch_size",
                                 "output",
                                 "grid",
                                 "codec",
                                 "crf",
                                 "fps",
                                 "preview",
                                 "dump",
                                 "journal",
                                 "resume",
                                 "trace",
                                 "cache_compare",
                                 "vae_parallel",
                                 "memory_limit",
                                 "ranks",
                                 "threads",
                                 "hardware",
                                 "context_parallelism",
                                 "data_parallelism",
                                 "fsdp_parallelism",
                                 "tensor_parallelism",
                                 "flash_min_seq_length",
                                 "comm_timeout",
                                 "check_finite",
                                 "compare_one_rank"};

}  // namespace

std::map<std::string, std::string> deciding_settings(GenerateOptions options) {
  // Files are compared by what they hold.
  for_each_input(options, [](const char*, fs::path& file) { file = file.filename(); });
  OptionSet set = describe_options(options);
  std::map<std::string, std::string> settings;
  for (const auto& setting : set.settings()) settings.insert(setting);
  for (const char* key : kFree) settings.erase(key);
  // Unset means that, as in older journals.
  std::string& limit = settings["attention_int8_limit"];
  if (limit.empty()) limit = fmt::to_string(attention::kInt8Limit);
  attention::StrategyOptions strategy;
  OptionSet of_strategy;
  attention::describe_strategy_options(of_strategy, strategy);
  for (const auto& setting : of_strategy.settings())
    if (std::ranges::find(kRounding, setting.first) == std::end(kRounding)) settings.erase(setting.first);
  return settings;
}

std::map<std::string, std::string> texts(const JsonObject& object) {
  std::map<std::string, std::string> all;
  for (const std::string& key : object.keys()) all[key] = object.get<std::string>(key);
  return all;
}

std::map<std::string, std::string> hashes_by_file(const std::string& lines) {
  std::map<std::string, std::string> hashes;
  for (const std::string_view line : split_terminated(lines, '\n')) {
    const size_t equals = line.rfind('=');
    hashes[std::string(line.substr(0, equals))] += line.substr(equals + 1);
  }
  return hashes;
}

}  // namespace zoetrope::pipeline
