#include "parallel/layout.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/words.h"
#include "parallel/shards.h"

namespace zoetrope::parallel {

const char* direction_name(Direction direction) {
  switch (direction) {
    case Direction::kForward:
      return "forward";
    case Direction::kTwoWay:
      return "two_way";
    case Direction::kOpen:
      return "open";
  }
  ZT_CHECK(false, "direction {}", static_cast<int>(direction));
  return "";
}

const char* kv_exchange_name(KVExchange exchange) {
  switch (exchange) {
    case KVExchange::kAsComputed:
      return "as_computed";
    case KVExchange::kBFloat16:
      return "bf16";
    case KVExchange::kInt8:
      return "int8";
  }
  ZT_CHECK(false, "exchange {}", static_cast<int>(exchange));
  return "";
}

const char* softmax_name(Softmax softmax) { return softmax == Softmax::kFixedMax ? "fixed_max" : "online"; }

LayoutRequest LayoutRequest::exactly(const ParallelLayout& layout) {
  return {layout.data,
          layout.context.ranks(),
          false,
          ContextRequest::exactly(layout.context),
          layout.vae_ranks,
          layout.text_ranks,
          layout.weight_shards,
          layout.tensor};
}

void check_ulysses(int64_t ulysses, int ranks, int64_t heads, const SettingNames& names) {
  const std::vector<int> legal = legal_ulysses(ranks, heads);
  if (std::find(legal.begin(), legal.end(), ulysses) != legal.end()) return;
  const std::string values = fmt::format("{}", fmt::join(legal, ", "));
  if (ulysses < 1) fail("{}={} must be at least 1; legal values: {}", names.ulysses, ulysses, values);
  if (ranks % ulysses != 0)
    fail("{}={} does not divide the context degree {}; legal values: {}", names.ulysses, ulysses, ranks, values);
  fail("{}={} is more than the {} heads, and a rank cannot attend less than one head; legal values: {}", names.ulysses,
       ulysses, heads, values);
}

std::vector<int> legal_tensor(int ranks, int64_t heads) {
  std::vector<int> legal = legal_ulysses(ranks, heads);
  std::erase_if(legal, [&](int parts) { return heads % parts != 0; });
  return legal;
}

void check_tensor(int64_t tensor, int ranks, int64_t heads) {
  const std::vector<int> legal = legal_tensor(ranks, heads);
  if (std::find(legal.begin(), legal.end(), tensor) != legal.end()) return;
  fail("tensor_parallelism={} does not divide {} and {} evenly; legal values: {}", tensor, counted(ranks, "rank"),
       counted(heads, "head"), fmt::join(legal, ", "));
}

void check_two_dimensional(std::optional<int64_t> ulysses, int ranks, int64_t heads, const SettingNames& names) {
  std::vector<int> legal = legal_ulysses(ranks, heads);
  std::erase_if(legal, [&](int u) { return u == 1 || u == ranks; });
  if (legal.empty()) {
    fail("{} needs Ulysses x ring of at least 2 each, and a context of {} with {} has no such split; use {}{}",
         names.two_dimensional, counted(ranks, "rank"), counted(heads, "head"), names.one_dimensional,
         heads > 1 ? ", or a context of 4, 6, 8, 9, … ranks" : "");
  }
  if (ulysses && std::find(legal.begin(), legal.end(), *ulysses) == legal.end()) {
    fail(
        "{}={} is not possible with {}, which needs Ulysses x ring of at least 2 each; legal values with "
        "a context of {} ranks: {}; or use {}",
        names.ulysses, *ulysses, names.two_dimensional, ranks, fmt::join(legal, ", "), names.one_dimensional);
  }
}

namespace {

void check_shard_weights(const std::vector<int>& weights, int ranks) {
  if (weights.empty()) return;
  if (static_cast<int>(weights.size()) != ranks) {
    fail("shard_weights={} has {}, but the context has {}; give one for each", fmt::join(weights, ","),
         counted(static_cast<int64_t>(weights.size()), "number"), counted(ranks, "rank"));
  }
  for (const int weight : weights) {
    if (weight >= 1 && weight <= kMostShardWeight) continue;
    fail("shard_weights={}: {} is not from 1 to {}", fmt::join(weights, ","), weight, kMostShardWeight);
  }
}

void check_gather(const ContextLayout& layout, int ranks, const SettingNames& names) {
  if (layout.gather != ranks || layout.ulysses != 1 || layout.ring != 1) {
    fail(
        "gather={} with ulysses={} and ring={} is not possible for a context of {}; either all ranks gather, with "
        "ulysses=1 and ring=1, or none does, which is gather=1",
        layout.gather, layout.ulysses, layout.ring, counted(ranks, "rank"));
  }
  const auto refuse = [&](const char* name, const auto& value, const char* why) {
    fail("{}={} is not possible where every rank gathers all keys and values ({}): {}; leave it out", name, value,
         names.gather, why);
  };
  if (layout.direction != Direction::kForward)
    refuse(names.direction, direction_name(layout.direction), "there is no ring");
  if (layout.head_chunks != 1) refuse(names.head_chunks, layout.head_chunks, "all heads arrive at once");
}

}  // namespace

void check(const ContextLayout& layout, int ranks, int64_t heads, const SettingNames& names) {
  check_ulysses(layout.ulysses, ranks, heads, names);
  check_shard_weights(layout.shard_weights, ranks);
  if (layout.gather != 1) return check_gather(layout, ranks, names);
  if (const int64_t product = int64_t{layout.ulysses} * layout.ring; product != ranks) {
    fail("ulysses={} × ring={} make {} ranks, but the context degree is {}; with ulysses={} the ring is {}",
         layout.ulysses, layout.ring, product, ranks, layout.ulysses, ranks / layout.ulysses);
  }
  if (layout.head_chunks < 1 || layout.head_chunks > kMostHeadChunks) {
    fail("{}={} must be from 1, which is one group of all heads, to {}", names.head_chunks, layout.head_chunks,
         kMostHeadChunks);
  }
}

void check(const ParallelLayout& layout, int ranks, int64_t heads) {
  check_tensor(layout.tensor, ranks, heads);
  const int places = ranks / layout.tensor;
  if (layout.data < 1 || places % layout.data != 0) {
    fail("data_parallelism={} does not divide the {} ranks{}", layout.data, places,
         layout.tensor > 1 ? fmt::format(" that tensor_parallelism={} leaves of {}", layout.tensor, ranks) : "");
  }
  check(layout.context, places / layout.data, heads / layout.tensor);
  for (const auto& [name, count] :
       {std::pair{"the rows of a frame", layout.vae_ranks}, std::pair{"the text encoder's layers", layout.text_ranks}})
    if (count < 1 || count > ranks) fail("{} of {} ranks cannot share {}", count, ranks, name);
  if (layout.weight_shards < 1 || places % layout.weight_shards != 0) {
    fail("fsdp_parallelism={} does not divide the {}{}", layout.weight_shards, counted(places, "rank"),
         layout.tensor > 1 ? fmt::format(" that tensor_parallelism={} leaves of {}", layout.tensor, ranks) : "");
  }
}

ContextLayout filled(const ContextRequest& request, int ranks, int64_t heads, const SettingNames& names) {
  const auto& [ulysses, ring, direction, head_chunks, two_dimensional, gather, shard_weights] = request;
  if (ring && *ring < 1)
    fail("ring={} must be at least 1, or unset for what is left of the context degree {}", *ring, ranks);
  if (!ulysses && ring && ranks % *ring != 0) {
    fail("ring={} does not divide the context degree {}; legal values: {}", *ring, ranks,
         fmt::join(legal_ulysses(ranks, ranks), ", "));
  }
  const int gathers = gather.value_or(ulysses == 1 && ring == 1 ? ranks : 1);
  const std::optional<int> fixed = gathers != 1 ? ulysses.value_or(1) : ulysses || !ring ? ulysses : ranks / *ring;
  if (two_dimensional) check_two_dimensional(fixed, ranks, heads, names);
  std::vector<int> legal = legal_ulysses(ranks, heads);
  if (two_dimensional) std::erase(legal, ranks);
  ContextLayout layout;
  layout.ulysses = fixed.value_or(legal.back());
  check_ulysses(layout.ulysses, ranks, heads, names);
  layout.gather = gathers;
  layout.ring = ring.value_or(gathers != 1 ? 1 : ranks / layout.ulysses);
  layout.direction = direction.value_or(layout.direction);
  layout.head_chunks = head_chunks.value_or(layout.head_chunks);
  layout.shard_weights = shard_weights;
  check(layout, ranks, heads, names);
  layout.shard_weights = reduced(shard_weights);
  return layout;
}

std::vector<int> reduced(std::vector<int> shard_weights) {
  int divisor = 0;
  for (const int weight : shard_weights) divisor = std::gcd(divisor, weight);
  for (int& weight : shard_weights) weight /= divisor;
  if (std::all_of(shard_weights.begin(), shard_weights.end(), [](int weight) { return weight == 1; })) return {};
  return shard_weights;
}

int count_changed(const ContextLayout& layout) {
  const ContextLayout defaults;
  return (layout.direction != defaults.direction ? 1 : 0) + (layout.head_chunks != defaults.head_chunks ? 1 : 0);
}

std::string degrees_text(const ContextLayout& layout) {
  if (layout.gather > 1) return fmt::format("gather {}", layout.gather);
  return fmt::format("Ulysses {} x ring {}", layout.ulysses, layout.ring);
}

std::string text(const ContextLayout& layout, Softmax softmax) {
  const ContextLayout defaults;
  std::string text = degrees_text(layout);
  if (layout.ring > 1 && layout.direction != defaults.direction)
    text += fmt::format(", ring direction {}", direction_name(layout.direction));
  if (softmax == Softmax::kFixedMax) text += fmt::format(", softmax {}", softmax_name(softmax));
  if (layout.head_chunks != defaults.head_chunks) text += fmt::format(", {} head chunks", layout.head_chunks);
  if (!layout.shard_weights.empty()) text += fmt::format(", shard weights {}", fmt::join(layout.shard_weights, ":"));
  return text;
}

std::string text(const ParallelLayout& layout, Softmax softmax) {
  const int context = layout.context.ranks();
  const std::string tensor = layout.tensor > 1 ? fmt::format(" x tensor {}", layout.tensor) : "";
  if (!layout.sharded && context > 1) {
    return fmt::format("data {} x context 1 ({}){}, each sequence whole on {} ranks, as flash_min_seq_length says",
                       layout.data, text(layout.of_sequence(), softmax), tensor, context);
  }
  return fmt::format("data {} x context {} ({}){}{}", layout.data, context, text(layout.context, softmax), tensor,
                     layout.weight_shards > 1 ? fmt::format(", weights over {}", layout.weight_shards) : "");
}

}  // namespace zoetrope::parallel
