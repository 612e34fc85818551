#include "pipeline/planning/weight_memory.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/index_range.h"
#include "io/weights/weights.h"

namespace zoetrope::pipeline {
namespace {

constexpr int64_t kStep = 10'000'000;  // of weight_memory that is chosen here, bytes

double gigabytes(int64_t steps) { return static_cast<double>(steps) / 100; }

bool leaves_streaming_open(const MemoryQuestion& question) {
  const GenerateOptions& options = question.options;
  return options.weights_in_memory == WeightsInMemory::kAuto && !options.weight_memory &&
         question.layout.weight_shards == 1;
}

bool fits(const MemoryQuestion& question, planner::Bytes available) { return peak_memory(question) <= available; }

}  // namespace

void check_weight_memory(const MemoryQuestion& asked) {
  const GenerateOptions& options = asked.options;
  const bool as_stored = options.weights_in_memory == WeightsInMemory::kAsStored;
  if (options.weights_in_memory == WeightsInMemory::kBf16 && options.dtype == DType::kF32)
    fail("weights_in_memory=bf16: with dtype=float32 weights are float32; set auto, which keeps all that fit");
  if (as_stored && !options.weight_cache.empty()) {
    fail(
        "weights_in_memory=as_stored: weights are read from their own files, not from weight_cache; leave that out, or "
        "set weight_memory= instead, which reads from it");
  }
  if (options.fsdp_parallelism.value_or(1) != 1) {
    const std::string other = options.weight_memory           ? fmt::format("weight_memory={}", *options.weight_memory)
                              : as_stored                     ? "weights_in_memory=as_stored"
                              : !options.weight_cache.empty() ? "weight_cache"
                                                              : "";
    if (!other.empty()) {
      fail(
          "fsdp_parallelism={}: ranks keep the transformer's blocks for one another, and {} says otherwise; leave one "
          "of them out",
          *options.fsdp_parallelism, other);
    }
  }
  if (!options.weight_memory) return;
  if (options.weights_in_memory != WeightsInMemory::kAuto) {
    fail("weight_memory={}: weights_in_memory={} says already what stays in memory; leave one of them out",
         *options.weight_memory, as_stored ? "as_stored" : "bf16");
  }
  MemoryQuestion question = asked;
  // What other degrees leave is known later: then loading says it.
  const int64_t heads = question.configs.experts.front().num_attention_heads,
                parts = options.tensor_parallelism.value_or(1);
  question.layout.tensor = static_cast<int>(parts == -1 || parts > heads || heads % parts != 0 ? heads : parts);
  const int64_t least = transformer_memory(question).least;
  if (static_cast<int64_t>(weight_memory_bytes(options)) >= least) return;
  // Rounded up: what is named is enough.
  const double gigabytes = std::ceil(static_cast<double>(least) * 1e-6) * 1e-3;
  fail(
      "weight_memory={}: too small for this transformer, of which at least {:.3f} GB must be in memory: two blocks, "
      "and what is in no block",
      *options.weight_memory, gigabytes);
}

int64_t largest(int64_t low, int64_t high, const std::function<bool(int64_t)>& fits) {
  int64_t best = low - 1;
  while (low <= high) {
    const int64_t middle = low + (high - low) / 2;
    if (fits(middle)) {
      best = middle;
      low = middle + 1;
    } else {
      high = middle - 1;
    }
  }
  return best;
}

std::optional<double> largest_weight_memory(const MemoryQuestion& question, planner::Bytes available) {
  const TransformerMemory memory = transformer_memory(question);
  MemoryQuestion other = question;
  other.options.weights_in_memory = WeightsInMemory::kAuto;
  const int64_t least = ceil_div(memory.least, kStep);
  const int64_t best = largest(least, ceil_div(memory.asked, kStep) - 1, [&](int64_t steps) {
    other.options.weight_memory = gigabytes(steps);
    return fits(other, available);
  });
  if (best < least) return std::nullopt;
  return gigabytes(best);
}

std::optional<double> weight_memory_to_fit(const MemoryQuestion& question, planner::Bytes available) {
  if (!leaves_streaming_open(question) || fits(question, available)) return {};
  return largest_weight_memory(question, available);
}

std::optional<double> weight_memory_to_fit(const std::vector<MemoryQuestion>& questions, planner::Bytes available) {
  std::optional<double> least;
  for (const MemoryQuestion& question : questions)
    if (const std::optional<double> gigabytes = weight_memory_to_fit(question, available))
      least = std::min(least.value_or(*gigabytes), *gigabytes);
  return least;
}

MemoryQuestion with_least_weights(const MemoryQuestion& question) {
  MemoryQuestion least = question;
  if (leaves_streaming_open(question))
    least.options.weight_memory = gigabytes(ceil_div(transformer_memory(question).least, kStep));
  return least;
}

MemoryQuestion as_it_fits(const MemoryQuestion& question, planner::Bytes available) {
  MemoryQuestion run = question;
  if (const std::optional<double> gigabytes = weight_memory_to_fit(question, available))
    run.options.weight_memory = gigabytes;
  return run;
}

size_t weight_memory_bytes(const GenerateOptions& options) {
  if (options.weights_in_memory == WeightsInMemory::kAsStored) return io::Weights::kFewestParts;
  return static_cast<size_t>(planner::Bytes::of_gigabytes(options.weight_memory.value_or(0)).count());
}

}  // namespace zoetrope::pipeline
