#include <cmath>

#include "attention/strategy.h"
#include "attention/strategy_options.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/run_files.h"
#include "base/words.h"
#include "cli/attention.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::cli {
namespace {

constexpr double kLargestScale = 1e38;  // float32 holds little more

}  // namespace

OptionSet describe_options(AttentionOptions& o) {
  OptionSet set;
  set.text("input", o.input,
           "safetensors file with q, k, v [B, S, H, D] in F32 or BF16 (k and v may have another S than q), and "
           "key_lengths [B] I64 or key_mask [B, S] BOOL or U8 where there are masked keys")
      .text("output", o.output, "safetensors file for o, of q's shape and dtype")
      .text("shape", o.shape, "instead of input: random normal data of this size, as BxSxHxD")
      .integer("kv", o.kv, {1, INT64_MAX}, "with shape: tokens of k and v; unset: those of q")
      .text("key_lengths", o.key_lengths, "with shape: valid keys, one number or one for each batch entry (5,7)")
      .dtype("dtype", o.dtype, "with shape: dtype of q, k, v and o; unset: bf16")
      .integer("seed", o.seed, {0, INT64_MAX}, "with shape: seed of the random data");
  set.text("hardware", o.hardware, pipeline::kHardwareHelp);
  attention::describe_strategy_options(set, o.strategy);
  set.text("implementation", o.implementation,
           "force a kernel: amx_bf16, avx512_bf16, avx512, avx2, scalar, and with attention_dtype=int8 avx512_int8, "
           "avx_vnni_int8, avx2_int8, scalar; unset or auto: the fastest that supports the problem")
      .number("scale", o.scale, {-kLargestScale, kLargestScale}, "scale of q·k; unset: 1/sqrt(D)")
      .integer("ranks", o.ranks, {1, 4096}, "ranks in this process; not under mpirun; unset: 1")
      .integer(
          "threads", o.threads, {1, 4096},
          "compute threads of this process, shared by its ranks; unset: the cores of its affinity and its CPU quota")
      .number("comm_timeout", o.comm_timeout, {0.01, 1e7}, "seconds that any wait for another rank may last")
      .integer("repeat", o.repeat, {1, 1000000}, "timed repeats, after warm-up runs")
      .flag("log_sum_exp", o.log_sum_exp,
            "also compute the log-sum-exp of every row; output= gets it as the tensor log_sum_exp [B, Sq, H] F32, and "
            "reference=true compares it")
      .flag(
          "reference", o.reference,
          "afterwards compare o with the definition in float64: every row, or evenly spaced rows where Sq·Skv·H·B·D is "
          "above 2e10")
      .text("json", o.json, "file for the measurements")
      .text("trace", o.trace, "file for a Chrome/Perfetto trace of all ranks and runs; then every repeat is one run");
  return set;
}

void check_options(const AttentionOptions& o) {
  attention::require_fixed_shards(o.strategy, "attention");
  if (o.input.empty() && o.shape.empty()) {
    fail("attention: name the data, as input=FILE.safetensors with q, k and v, or shape=BxSxHxD for random data");
  }
  if (!o.input.empty() && !o.shape.empty()) {
    fail("attention: input={} and shape={} are both given; leave one of them out", o.input, o.shape);
  }
  if (!o.input.empty() && !o.key_lengths.empty()) {
    fail("key_lengths={} is for random data, but input={} is given; put a tensor key_lengths [B] I64 into the file",
         o.key_lengths, o.input);
  }
  // For the engine zero means the default.
  if (o.scale && static_cast<float>(*o.scale) == 0) {
    fail("scale={}: is zero in float32; leave scale out for 1/sqrt(D)", *o.scale);
  }
  const std::string hardware = if_exists(o.hardware);
  check_files_differ(
      {{"hardware", hardware}, {"input", o.input}, {"output", o.output}, {"json", o.json}, {"trace", o.trace}});
}

void check_files_can_be_written(const AttentionOptions& options) {
  for (const std::string* path : {&options.output, &options.json, &options.trace}) {
    if (!path->empty()) check_writable(*path);
  }
}

Shape parse_shape(const std::string& text) {
  const std::vector<std::string_view> parts = split(text, 'x');
  Shape shape;
  int64_t bytes = 8;  // of the widest element
  if (parts.size() == 4) {
    for (const std::string_view part : parts) {
      const std::optional<int64_t> extent = to_number<int64_t>(part);
      if (!extent) break;
      if (*extent < 1) fail("shape={}: has an extent of {}; every one must be at least 1", text, *extent);
      if (__builtin_mul_overflow(bytes, *extent, &bytes)) fail("shape={}: is larger than any memory", text);
      shape.append(*extent);
    }
  }
  if (shape.rank() != 4) fail("shape={}: must be BxSxHxD (batch, tokens, heads, head_dim), as 1x4096x8x128", text);
  return shape;
}

std::vector<int64_t> parse_key_lengths(const std::string& text, int64_t batch, int64_t keys) {
  std::vector<int64_t> lengths;
  for (const std::string_view part : split(text, ',')) {
    const std::optional<int64_t> length = to_number<int64_t>(part);
    if (!length) fail("key_lengths={}: must be whole numbers separated by commas, as 5,7", text);
    if (*length < 0 || *length > keys) {
      fail("key_lengths={}: {} is out of range; there are {} keys, so 0 to {} is possible", text, *length, keys, keys);
    }
    lengths.push_back(*length);
  }
  if (lengths.size() == 1) lengths.resize(static_cast<size_t>(batch), lengths[0]);
  if (static_cast<int64_t>(lengths.size()) != batch) {
    fail("key_lengths={}: {} numbers, but a batch of {}; give one number or one for each entry", text, lengths.size(),
         batch);
  }
  return lengths;
}

attention::Strategy strategy_of(const AttentionOptions& options, DType dtype, int ranks, int64_t heads) {
  attention::Strategy strategy = attention::parse_strategy(options.strategy, ranks, heads);
  attention::check_kv_exchange(strategy.kv_exchange, dtype);
  if (options.implementation.empty() || options.implementation == "auto") return strategy;
  strategy.kernel = options.implementation;
  return strategy;
}

}  // namespace zoetrope::cli
