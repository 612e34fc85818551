#include "bench/strategies.h"

#include "attention/strategy.h"
#include "attention/strategy_options.h"
#include "base/error.h"
#include "base/options.h"
#include "base/words.h"
#include "bench/words.h"

namespace zoetrope::bench {

NamedStrategy::NamedStrategy(std::string row) : name(std::move(row)) {
  OptionSet set;
  attention::describe_strategy_options(set, keys);
  const std::string keys_of_row = "attention=" + name;
  for (const std::string_view key : split(keys_of_row, '+')) set.set_argument(key);
  attention::require_fixed_shards(keys, "bench");
  if (keys.attention == "auto")
    fail("strategies={}: a row needs a name of its own; auto is the planner's choice", name);
  if (keys.kv_exchange_dtype != attention::KVExchange::kAsComputed)
    fail("strategies={}: rows are held against the exact result, from which kv_exchange_dtype leads away; leave it out",
         name);
}

std::vector<NamedStrategy> parse_strategies(std::string_view words, const std::vector<std::string>& all) {
  std::vector<NamedStrategy> rows;
  for (const std::string& word : words == "all" ? all : split_words("strategies", words)) {
    for (const NamedStrategy& row : rows)
      if (row.name == word) fail("strategies={}: {} appears twice", words, word);
    rows.emplace_back(word);
  }
  return rows;
}

}  // namespace zoetrope::bench
