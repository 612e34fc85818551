// Attention over arrays of Python, in place: the arrays' memory is what the engine reads and writes.
#include "zoetrope/attention.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "attention/strategy.h"
#include "attention/strategy_options.h"
#include "base/error.h"
#include "comm/launcher.h"
#include "python/bindings/bindings.h"
#include "python/bindings/transport.h"

namespace zoetrope::python {
namespace {

constexpr int64_t kMostRanks = 4096;

// How one call is computed, next to the strategy's own keys.
struct Settings {
  attention::StrategyOptions strategy;
  std::string implementation;
  std::optional<int64_t> threads;
  int64_t ranks = 1;
  double comm_timeout = comm::RankOptions().timeout_seconds;
};

OptionSet describe(Settings& settings) {
  OptionSet set;
  attention::describe_strategy_options(set, settings.strategy);
  set.text("implementation", settings.implementation, "a kernel by its name; unset: the fastest that can")
      .integer("ranks", settings.ranks, {1, kMostRanks}, "threads of this process that share the work")
      .integer("threads", settings.threads, {1, kMostRanks}, "compute threads, shared by the ranks; unset: all cores")
      .number("comm_timeout", settings.comm_timeout, {0.01, 1e7}, "seconds that a wait for another rank may last");
  return set;
}

struct Arrays {
  TensorView q, k, v;  // [B, S, H, D], k and v [B, keys, H, D]
  TensorView o;        // as q
  TensorView log_sum_exp;
  attention::Mask mask;
};

attention::Problem problem_of(const Arrays& a, double scale) {
  for (const auto& [name, x] : {std::pair("q", &a.q), std::pair("k", &a.k), std::pair("v", &a.v)}) {
    if (x->rank() != 4) {
      fail("attention: {} has {} axes, but must have 4: [batch, tokens, heads, head_dim]", name, x->rank());
    }
    if (x->dtype() != DType::kF32 && x->dtype() != DType::kBF16) {
      throw nb::type_error(
          fmt::format("attention: {} is {}, but must be F32 or BF16", name, dtype_name(x->dtype())).c_str());
    }
    if (x->dtype() != a.q.dtype()) {
      throw nb::type_error(fmt::format("attention: {} is {}, but q is {}; all must have one dtype", name,
                                       dtype_name(x->dtype()), dtype_name(a.q.dtype()))
                               .c_str());
    }
    for (const int axis : {0, 2, 3}) {
      if (x->extent(axis) == a.q.extent(axis)) continue;
      fail("attention: {} is {} and q {}; batch, heads and head_dim must be the same", name, x->shape().to_string(),
           a.q.shape().to_string());
    }
  }
  if (a.k.extent(1) != a.v.extent(1)) {
    fail("attention: k has {} tokens and v {}; each key needs its value", a.k.extent(1), a.v.extent(1));
  }
  attention::Problem problem;
  problem.batch = a.q.extent(0);
  problem.tokens = a.q.extent(1);
  problem.heads = a.q.extent(2);
  problem.head_dim = a.q.extent(3);
  problem.dtype = a.q.dtype();
  problem.scale = static_cast<float>(scale);
  if (!a.mask.key_lengths.empty()) problem.mask = attention::MaskKind::kKeyLengths;
  if (a.mask.key_mask) problem.mask = attention::MaskKind::kKeyMask;
  if (a.k.extent(1) != problem.tokens) problem.key_tokens = a.k.extent(1);
  problem.log_sum_exp = static_cast<bool>(a.log_sum_exp);
  if (a.k.extent(1) == 0 && problem.tokens > 0) fail("attention: k is {}, which has no key", a.k.shape().to_string());
  return problem;
}

attention::ContextAttention plan(const attention::Problem& problem, const Settings& settings, comm::Communicator& world,
                                 int threads) {
  attention::require_fixed_shards(settings.strategy, "attention");
  attention::Strategy strategy = attention::parse_strategy(settings.strategy, world.size(), problem.heads);
  attention::check_kv_exchange(strategy.kv_exchange, problem.dtype);
  strategy.kernel = settings.implementation;
  return attention::plan(problem, strategy, world, threads);
}

void compute(const Arrays& a, const attention::Problem& problem, const Settings& settings) {
  const auto ranks = static_cast<int>(settings.ranks);
  const int threads = std::max(1, comm::process_threads(settings.threads) / ranks);
  const bool cross = problem.key_tokens > 0;
  comm::RankOptions options;
  options.timeout_seconds = settings.comm_timeout;
  comm::run_ranks(
      ranks,
      [&](comm::Communicator& world) {
        attention::ContextAttention planned = plan(problem, settings, world, threads);
        const IndexRange own = planned.tokens();
        const auto rows = [&](const TensorView& x) { return x.slice(1, own.begin, own.end); };
        const auto keys = [&](const TensorView& x) { return cross ? x : rows(x); };
        planned.run(rows(a.q), keys(a.k), keys(a.v), a.mask, rows(a.o),
                    a.log_sum_exp ? rows(a.log_sum_exp) : TensorView());
      },
      options);
}

void attend(const nb::object& q, const nb::object& k, const nb::object& v, const nb::object& o,
            const nb::object& log_sum_exp, const std::optional<std::vector<int64_t>>& key_lengths,
            const nb::object& key_mask, double scale, bool bfloat16_bits, const Keys& keys) {
  Settings settings;
  OptionSet set = describe(settings);
  set_keys(set, keys, "attention");
  const Bits bits = bfloat16_bits ? Bits::kAreBFloat16 : Bits::kByDType;
  // The arrays are held until the call ends, so that their memory is.
  const auto q_array = read_array("attention: q", q), k_array = read_array("attention: k", k),
             v_array = read_array("attention: v", v);
  const auto o_array = write_array("attention: the output", o);
  nb::ndarray<> logs_array;
  nb::ndarray<nb::ro> mask_array;
  Arrays arrays;
  arrays.q = view_of("attention: q", q_array, bits);
  arrays.k = view_of("attention: k", k_array, bits);
  arrays.v = view_of("attention: v", v_array, bits);
  arrays.o = view_of("attention: the output", o_array, bits);
  if (!log_sum_exp.is_none()) {
    logs_array = write_array("attention: log_sum_exp", log_sum_exp);
    arrays.log_sum_exp = view_of("attention: log_sum_exp", logs_array);
  }
  if (!key_mask.is_none()) {
    mask_array = read_array("attention: key_mask", key_mask);
    arrays.mask.key_mask = view_of("attention: key_mask", mask_array);
  }
  if (key_lengths) {
    if (!key_mask.is_none()) fail("attention: key_lengths and key_mask are both given; give one of them");
    arrays.mask.key_lengths = *key_lengths;
  }
  const attention::Problem problem = problem_of(arrays, scale);
  if (key_lengths && key_lengths->empty()) fail("attention: key_lengths is empty, but the batch is {}", problem.batch);
  const nb::gil_scoped_release others_run;
  with_origins(set, [&] { compute(arrays, problem, settings); });
}

// The part of one rank: its own tokens of q, k and v.
void attend_as_rank(const nb::object& transport, int rank, int size, int64_t tokens, const nb::object& q,
                    const nb::object& k, const nb::object& v, const nb::object& o,
                    const std::optional<std::vector<int64_t>>& key_lengths, double scale, const Keys& keys) {
  Settings settings;
  OptionSet set = describe(settings);
  set_keys(set, keys, "attention");
  if (settings.ranks != 1) fail("attention: ranks={}: the processes are the ranks; leave it out", settings.ranks);
  const auto q_array = read_array("attention: q", q), k_array = read_array("attention: k", k),
             v_array = read_array("attention: v", v);
  const auto o_array = write_array("attention: the output", o);
  Arrays arrays;
  arrays.q = view_of("attention: q", q_array);
  arrays.k = view_of("attention: k", k_array);
  arrays.v = view_of("attention: v", v_array);
  arrays.o = view_of("attention: the output", o_array);
  if (key_lengths) arrays.mask.key_lengths = *key_lengths;
  const nb::gil_scoped_release others_run;
  with_origins(set, [&] {
    const std::unique_ptr<comm::Communicator> world = make_communicator(transport, rank, size);
    attention::Problem problem = problem_of(arrays, scale);
    problem.tokens = tokens;
    problem.key_tokens = 0;
    plan(problem, settings, *world, comm::process_threads(settings.threads))
        .run(arrays.q, arrays.k, arrays.v, arrays.mask, arrays.o);
  });
}

}  // namespace

void bind_attention(nb::module_& module) {
  module.def("attention", attend, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("o"), nb::arg("log_sum_exp").none(),
             nb::arg("key_lengths").none(), nb::arg("key_mask").none(), nb::arg("scale"), nb::arg("bfloat16_bits"),
             nb::arg("keys"),
             "Attends q to k and v into o, all [B, S, H, D] in place. scale 0: 1/sqrt(D). What zoetrope.attention() "
             "calls.");
  module.def("attention_as_rank", attend_as_rank, nb::arg("transport"), nb::arg("rank"), nb::arg("size"),
             nb::arg("tokens"), nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("o"), nb::arg("key_lengths").none(),
             nb::arg("scale"), nb::arg("keys"),
             "The part of one rank of `size`, with its own tokens of q, k, v and o. Collective.");
}

}  // namespace zoetrope::python
