#include "pipeline/settings/best_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "attention/strategy.h"
#include "base/error.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {
namespace {

constexpr int64_t kMostRanks = 4096;
const std::vector<std::string> kKeys = {
    "attention",      "data_parallelism", "ulysses_shards",    "ulysses_attention_chunks",
    "ring_direction", "softmax",          "flash_block_sizes", "vae_parallel"};

// At `separator` outside of braces, without empty parts.
std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  int depth = 0;
  for (size_t at = 0; at <= text.size(); ++at) {
    if (at < text.size() && text[at] == '{') ++depth;
    if (at < text.size() && text[at] == '}') --depth;
    if (at < text.size() && (text[at] != separator || depth > 0)) continue;
    if (at > begin) parts.push_back(text.substr(begin, at - begin));
    begin = at + 1;
  }
  return parts;
}

// Whether `ranks` ranks can be used so by a model of enough heads; how many a file's model has is not known here.
void check_layout(const GenerateOptions& options, int64_t ranks) {
  const int64_t data = options.data_parallelism.value_or(1);
  if (data < 1 || ranks % data != 0) fail("data_parallelism={} does not divide {} ranks", data, ranks);
  const attention::Strategy strategy = attention::requested_strategy(options.strategy);
  attention::checked_strategy(strategy, static_cast<int>(ranks / data), kMostRanks);
}

// Returns the row's number of ranks.
int64_t check_row(std::string_view ranks, std::string_view settings) {
  int64_t count = 0;
  try {
    count = parse_integer(ranks, {1, kMostRanks});
  } catch (const Error& error) {
    fail("a row is a number of ranks from 1 to {}, or hardware: {}", kMostRanks, error.what());
  }
  GenerateOptions options;
  OptionSet set = describe_options(options);
  for (const std::string_view word : parts_of(settings, ' ')) {
    const std::string_view key = word.substr(0, word.find('='));
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      fail("row {}: '{}' does not say how ranks are used; these keys do: {}", ranks, word, fmt::join(kKeys, ", "));
    set.set(key, word.substr(std::min(key.size() + 1, word.size())), fmt::format("row {}", ranks));
  }
  try {
    check_layout(options, count);
  } catch (const Error& error) {
    fail("row {}: {}", ranks, error.what());
  }
  return count;
}

}  // namespace

void check_best_table(std::string_view text) {
  std::set<std::string_view> seen;
  std::set<int64_t> rows;
  for (const std::string_view part : parts_of(text, ',')) {
    const size_t colon = std::min(part.find(':'), part.size());
    const std::string_view name = part.substr(0, colon), value = part.substr(std::min(colon + 1, part.size()));
    if (value.empty()) fail("'{}' has no value; write rows as `8: data_parallelism=1 ulysses_shards=8`", name);
    if (!seen.insert(name).second) fail("{} is given twice", name);
    if (name == "hardware") continue;
    if (const int64_t ranks = check_row(name, value); !rows.insert(ranks).second)
      fail("has two rows of {} ranks", ranks);
  }
  if (!seen.contains("hardware")) fail("names no profile; write it as `hardware: NAME`");
}

}  // namespace zoetrope::pipeline
