// The entry point: checks what callers bring, chooses the implementation and calls it. Computes nothing itself.
#include "kernels/flash_attention/flash_attention.h"

#include <cmath>

#include "base/error.h"
#include "kernels/cpu_features.h"
#include "kernels/flash_attention/fixed_max.h"
#include "kernels/flash_attention/kernel.h"
#include "kernels/flash_attention/tile_size.h"
#include "kernels/flash_attention/vector_kernels.h"

namespace zoetrope::kernels {
namespace {

// Fastest first, where all instructions are as fast as they could be; see fastest().
constexpr Implementation<FlashProblem, FlashFactory> kImplementations[] = {
    {"avx512_int8", avx512_int8_refusal, make_avx512_int8_kernel},
    {"avx_vnni_int8", avx_vnni_int8_refusal, make_avx_vnni_int8_kernel},
    {"avx2_int8", avx2_int8_refusal, make_avx2_int8_kernel},
    {"amx_bf16", amx_bf16_refusal, make_amx_bf16_kernel},
    {"avx512_bf16", avx512_bf16_refusal, make_avx512_bf16_kernel},
    {"avx512", avx512_refusal, make_avx512_kernel},
    {"avx2", avx2_refusal, make_avx2_kernel},
    {"scalar", [](const FlashProblem&) -> Refusal { return std::nullopt; }, make_scalar_kernel},
};

// The implementation that is taken where none is named: the first that can, but for what this CPU is slow at.
std::string fastest(const FlashProblem& problem) {
  for (const auto& implementation : kImplementations) {
    if (implementation.supports(problem)) continue;
    if (implementation.function == make_avx512_bf16_kernel && !cpu_features().fast_bf16_dots) continue;
    return implementation.name;
  }
  return "";
}

void validate(const FlashProblem& p) {
  if (p.dtype != DType::kF32 && p.dtype != DType::kBF16) {
    fail("flash attention: dtype {} is not supported; F32 and BF16 are", dtype_name(p.dtype));
  }
  if (p.head_dim < 1 || p.head_dim > kMostHeadDim) {
    fail("flash attention: head_dim is {}, but must be in [1, {}]", p.head_dim, kMostHeadDim);
  }
  if (p.batch < 0 || p.heads < 0 || p.query_tokens < 0 || p.key_tokens < 0) {
    fail("flash attention: negative size in batch {}, heads {}, query_tokens {}, key_tokens {}", p.batch, p.heads,
         p.query_tokens, p.key_tokens);
  }
  if (!std::isfinite(p.scale)) fail("flash attention: scale is {}, but must be finite", p.scale);
  if (p.int8 && p.dtype != DType::kBF16) {
    fail("flash attention: {}", FlashAttention::int8_refusal(p.dtype));
  }
  if (p.softmax == Softmax::kFixedMax && p.bias) {
    fail("flash attention: fixed-max softmax has no bound on scores with a bias; use online softmax");
  }
  if (p.tiles.query < 0 || p.tiles.keys < 0 || p.tiles.query > kMostTileRows || p.tiles.keys > kMostTileKeys) {
    fail("flash attention: tiles of {} queries and {} keys; at most {} and {}, or 0 for the tuned ones, are possible",
         p.tiles.query, p.tiles.keys, kMostTileRows, kMostTileKeys);
  }
}

// x must be [B, S, H, D] with a contiguous last axis, S = `tokens`.
void validate_tensor(const FlashProblem& p, const char* name, const TensorView& x, int64_t tokens) {
  const Shape expected{p.batch, tokens, p.heads, p.head_dim};
  if (x.shape() != expected) {
    fail("flash attention: {} is {}, but must be {} (batch, tokens, heads, head_dim)", name, x.shape().to_string(),
         expected.to_string());
  }
  if (x.dtype() != p.dtype) {
    fail("flash attention: {} has dtype {}, but the problem says {}", name, dtype_name(x.dtype()), dtype_name(p.dtype));
  }
  if (x.stride(3) != 1 && p.head_dim > 1) {
    fail("flash attention: the last axis of {} must be contiguous, but its stride is {}", name, x.stride(3));
  }
}

void validate_mask(const FlashProblem& p, const KeyBlock& block) {
  const int64_t end = block.first_key + block.k.extent(1);
  if (p.mask == MaskKind::kKeyLengths) {
    if (static_cast<int64_t>(block.key_lengths.size()) != p.batch) {
      fail("flash attention: {} key lengths for a batch of {}", block.key_lengths.size(), p.batch);
    }
  } else if (!block.key_lengths.empty()) {
    fail("flash attention: key lengths were given, but the problem's mask is not kKeyLengths");
  }
  if (p.mask == MaskKind::kKeyMask) {
    const TensorView& mask = block.key_mask;
    if (mask.rank() != 2 || mask.extent(0) != p.batch || mask.extent(1) < end) {
      fail("flash attention: key_mask is {}, but must be [{}, ≥ {}] to cover keys up to {}", mask.shape().to_string(),
           p.batch, end, end);
    }
    if (mask.dtype() != DType::kU8 && mask.dtype() != DType::kBool) {
      fail("flash attention: key_mask has dtype {}, but must be U8 or BOOL", dtype_name(mask.dtype()));
    }
  } else if (block.key_mask) {
    fail("flash attention: a key mask was given, but the problem's mask is not kKeyMask");
  }
}

void validate_bias(const FlashProblem& p, const KeyBlock& block) {
  if (!p.bias) {
    if (block.bias) fail("flash attention: a bias was given, but the problem has none");
    return;
  }
  const Shape expected{p.heads, p.query_tokens, block.k.extent(1)};
  if (block.bias.shape() != expected || block.bias.dtype() != DType::kF32) {
    fail("flash attention: bias is {} {}, but must be F32 {} (heads, query tokens, key tokens)",
         dtype_name(block.bias.dtype()), block.bias.shape().to_string(), expected.to_string());
  }
  if (block.bias.stride(2) != 1 && block.bias.extent(2) > 1) {
    fail("flash attention: the last axis of bias must be contiguous, but its stride is {}", block.bias.stride(2));
  }
}

void validate_output(const FlashProblem& p, const TensorView& o, const TensorView& log_sum_exp) {
  validate_tensor(p, "o", o, p.query_tokens);
  if (!log_sum_exp) return;
  const Shape expected{p.batch, p.query_tokens, p.heads};
  if (log_sum_exp.shape() != expected || log_sum_exp.dtype() != DType::kF32) {
    fail("flash attention: log_sum_exp is {} {}, but must be F32 {} (batch, tokens, heads)",
         dtype_name(log_sum_exp.dtype()), log_sum_exp.shape().to_string(), expected.to_string());
  }
}

// The statistics of one block or of all.
void validate_statistics(const FlashProblem& p, const char* name, const TensorView& x) {
  const Shape expected{p.batch, p.heads, statistics_floats(p.head_dim)};
  if (x.shape() != expected || x.dtype() != DType::kF32 || x.stride(2) != 1) {
    fail("flash attention: {} are {} {}, but must be F32 {} (batch, heads, 3 + head_dim), the last axis contiguous",
         name, dtype_name(x.dtype()), x.shape().to_string(), expected.to_string());
  }
}

void validate_keys(const FlashProblem& p, const KeyBlock& block) {
  const int64_t keys = block.k.rank() == 4 ? block.k.extent(1) : p.key_tokens;
  validate_tensor(p, "k", block.k, keys);
  validate_tensor(p, "v", block.v, keys);
  if (keys > p.key_tokens) {
    fail("flash attention: a block of {} keys, but the problem says at most {}", keys, p.key_tokens);
  }
  if (block.first_key < 0) fail("flash attention: first_key is {}, but must not be negative", block.first_key);
  validate_mask(p, block);
}

void validate_block(const FlashProblem& p, const TensorView& q, const KeyBlock& block) {
  validate_tensor(p, "q", q, p.query_tokens);
  validate_keys(p, block);
  validate_bias(p, block);
  if (block.statistics) {
    if (p.softmax != Softmax::kFixedMax)
      fail("flash attention: key statistics were given, but softmax is not fixed-max");
    validate_statistics(p, "key statistics", block.statistics);
  }
}

bool without_rows(const FlashProblem& p) { return p.batch == 0 || p.heads == 0 || p.query_tokens == 0; }

}  // namespace

struct FlashAttention::Impl {
  FlashProblem problem;
  const char* name;
  std::unique_ptr<FlashKernel> kernel;

  // A state of this object: anything else is a bug of the caller.
  RowState& rows_of(FlashState& state) const {
    auto& rows = static_cast<RowState&>(state);
    ZT_CHECK(
        rows.rows == problem.batch * problem.heads * problem.query_tokens && rows.o_stride == state_row_stride(problem),
        "the state belongs to another problem");
    return rows;
  }
};

FlashAttention::FlashAttention(const FlashProblem& problem) : impl_(std::make_unique<Impl>()) {
  validate(problem);
  const std::string& forced = problem.implementation;
  const auto& chosen = choose("flash attention", kImplementations, problem, forced.empty() ? fastest(problem) : forced);
  impl_->problem = problem;
  impl_->name = chosen.name;
  impl_->kernel = chosen.function(problem);
}

FlashAttention::~FlashAttention() = default;
FlashAttention::FlashAttention(FlashAttention&&) noexcept = default;
FlashAttention& FlashAttention::operator=(FlashAttention&&) noexcept = default;

const FlashProblem& FlashAttention::problem() const { return impl_->problem; }
const char* FlashAttention::implementation() const { return impl_->name; }

std::vector<std::string> FlashAttention::implementations() {
  std::vector<std::string> names;
  for (const auto& implementation : kImplementations) names.emplace_back(implementation.name);
  return names;
}

std::string FlashAttention::refusal(const FlashProblem& problem, const std::string& name) {
  for (const auto& implementation : kImplementations) {
    if (name == implementation.name) return implementation.supports(problem).value_or("");
  }
  return fmt::format("there is no implementation '{}'", name);
}

std::string FlashAttention::int8_refusal(DType dtype) {
  if (dtype == DType::kBF16) return "";
  return fmt::format("attention is computed in {}, and int8 is of bf16",
                     dtype == DType::kF32 ? "float32" : dtype_name(dtype));
}

std::unique_ptr<FlashState> FlashAttention::make_state() const { return std::make_unique<RowState>(impl_->problem); }
size_t FlashAttention::state_bytes() const { return row_state_bytes(impl_->problem); }

void FlashAttention::init(Stream& stream, FlashState& state) const { init_rows(stream, impl_->rows_of(state)); }

TileCounts FlashAttention::accumulate(Stream& stream, FlashState& state, const TensorView& q,
                                      const KeyBlock& block) const {
  validate_block(impl_->problem, q, block);
  if (impl_->problem.softmax == Softmax::kFixedMax && !block.statistics) {
    fail("flash attention: fixed-max softmax over blocks needs the statistics of all keys");
  }
  RowState& rows = impl_->rows_of(state);
  if (without_rows(impl_->problem) || block.k.extent(1) == 0) return {};
  return impl_->kernel->accumulate(stream, rows, q, block);
}

void FlashAttention::finish(Stream& stream, FlashState& state, const TensorView& o,
                            const TensorView& log_sum_exp) const {
  validate_output(impl_->problem, o, log_sum_exp);
  finish_rows(stream, impl_->problem, impl_->rows_of(state), {o, log_sum_exp});
}

TileCounts FlashAttention::attend(Stream& stream, const TensorView& q, const KeyBlock& block, const TensorView& o,
                                  const TensorView& log_sum_exp) const {
  validate_block(impl_->problem, q, block);
  validate_output(impl_->problem, o, log_sum_exp);
  if (without_rows(impl_->problem)) return {};
  return impl_->kernel->attend(stream, q, block, {o, log_sum_exp});
}

void FlashAttention::key_statistics(Stream& stream, const KeyBlock& block, const TensorView& out) const {
  const FlashProblem& p = impl_->problem;
  validate_keys(p, block);
  validate_statistics(p, "key statistics", out);
  measure_keys(stream, p, block, out);
}

void FlashAttention::combine_key_statistics(std::span<const TensorView> parts, const TensorView& into) {
  ZT_CHECK(into.rank() == 3 && into.extent(2) > kStatMean && into.dtype() == DType::kF32 && into.stride(2) == 1);
  for (const TensorView& part : parts) {
    ZT_CHECK(part.shape() == into.shape() && part.dtype() == DType::kF32 && part.stride(2) == 1);
  }
  combine_statistics(parts, into);
}

}  // namespace zoetrope::kernels
