#include "attention/agreement.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace zoetrope::attention {
namespace {

// Numbers, so that ranks compare a few bytes each; as text only where they differ.
struct Term {
  std::string name;
  int64_t value = 0;
  std::string (*text)(int64_t value) = nullptr;
};

// Its name: no implementation has a longer one, and those that do not exist are refused.
using Kernel = std::array<char, 64>;

std::string text_of(MaskKind mask) {
  switch (mask) {
    case MaskKind::kNone:
      return "none";
    case MaskKind::kKeyLengths:
      return "key_lengths";
    case MaskKind::kKeyMask:
      return "key_mask";
  }
  return std::to_string(static_cast<int>(mask));
}

std::string text_of(AttentionDtype dtype) { return dtype == AttentionDtype::kInt8 ? "int8" : "as_computed"; }
std::string text_of(DType dtype) { return dtype_name(dtype); }
std::string text_of(Direction direction) { return direction_name(direction); }
std::string text_of(Softmax softmax) { return softmax_name(softmax); }
std::string text_of(KVExchange exchange) { return kv_exchange_name(exchange); }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(int value) { return std::to_string(value); }

template <typename T>
Term term(std::string name, T value) {
  return {std::move(name), static_cast<int64_t>(value), [](int64_t v) { return text_of(static_cast<T>(v)); }};
}
Term term(std::string name, float value) {
  return {std::move(name), std::bit_cast<int32_t>(value),
          [](int64_t v) { return fmt::format("{}", std::bit_cast<float>(static_cast<int32_t>(v))); }};
}
Term term(std::string name, double value) {
  return {std::move(name), std::bit_cast<int64_t>(value),
          [](int64_t v) { return fmt::format("{}", std::bit_cast<double>(v)); }};
}

std::vector<Term> terms_of(const Problem& p, const Strategy& s, const parallel::ContextLayout& layout) {
  std::vector<Term> terms{term("batch", p.batch), term("tokens", p.tokens),     term("key_tokens", p.key_tokens),
                          term("heads", p.heads), term("head_dim", p.head_dim), term("dtype", p.dtype),
                          term("scale", p.scale), term("mask", p.mask),         term("log_sum_exp", p.log_sum_exp)};
  layout.for_each([&](const char* name, auto value) { terms.push_back(term(name, value)); });
  for (int rank = 0; rank < layout.ranks(); ++rank)
    terms.push_back(term(fmt::format("shard_weights[{}]", rank), layout.shard_weight(rank)));
  for (Term& of_strategy :
       std::vector{term("softmax", *s.softmax), term("block_q", s.block_q), term("block_kv", s.block_kv),
                   term("k_smoothing", s.k_smoothing), term("deterministic", s.deterministic),
                   term("tile_search", s.tile_search), term("kv_exchange", s.kv_exchange),
                   term("attention_dtype", s.attention_dtype), term("attention_int8_limit", s.attention_int8_limit)})
    terms.push_back(std::move(of_strategy));
  return terms;
}

}  // namespace

void check_agreement(comm::Communicator& context, const Problem& problem, const Strategy& strategy,
                     const parallel::ContextLayout& layout) {
  if (context.size() == 1) return;
  const std::vector<Term> terms = terms_of(problem, strategy, layout);
  const auto ranks = static_cast<size_t>(context.size());
  std::vector<int64_t> mine, values(ranks * terms.size());
  for (const Term& term : terms) mine.push_back(term.value);
  Kernel kernel{};
  strategy.kernel.copy(kernel.data(), kernel.size() - 1);
  std::vector<Kernel> kernels(ranks);
  context.all_gather(mine.data(), values.data(), mine.size() * sizeof(int64_t), "attention plan");
  context.all_gather(&kernel, kernels.data(), sizeof kernel, "attention plan");
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto refuse = [&](const std::string& name, const std::string& first, const std::string& other) {
      fail(
          "attention: rank {} planned {}={}, but rank {} planned {}; all ranks must bring the same problem and "
          "strategy",
          context.world_rank(0), name, first, context.world_rank(static_cast<int>(rank)), other);
    };
    for (size_t i = 0; i < terms.size(); ++i) {
      const int64_t first = values[i], other = values[rank * terms.size() + i];
      if (other != first) refuse(terms[i].name, terms[i].text(first), terms[i].text(other));
    }
    const auto name_of = [](const Kernel& k) { return k[0] == 0 ? "auto" : k.data(); };
    if (kernels[rank] != kernels[0]) refuse("kernel", name_of(kernels[0]), name_of(kernels[rank]));
  }
}

}  // namespace zoetrope::attention
