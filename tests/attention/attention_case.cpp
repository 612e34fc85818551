#include "attention_case.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "attention/plan.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/rank_test.h"
#include "device/stream.h"
#include "kernels/flash_attention/flash_attention.h"
#include "tensor/half.h"

namespace zoetrope::attention::testing {
namespace {

void store(const TensorView& x, int64_t at, float value) {
  if (x.dtype() == DType::kBF16) {
    x.data<BFloat16>()[at] = to_bfloat16(value);
  } else {
    x.data<float>()[at] = value;
  }
}

double load(const TensorView& x, int64_t at) {
  if (x.dtype() == DType::kBF16) return to_float(x.data<BFloat16>()[at]);
  if (x.dtype() == DType::kF64) return x.data<double>()[at];
  return x.data<float>()[at];
}

// Calls body(b, s, h, d, offset) for every element of [B, S, H, D].
template <typename Body>
void for_each(const TensorView& x, Body&& body) {
  for (int64_t b = 0; b < x.extent(0); ++b)
    for (int64_t s = 0; s < x.extent(1); ++s)
      for (int64_t h = 0; h < x.extent(2); ++h)
        for (int64_t d = 0; d < x.extent(3); ++d)
          body(b, s, h, d, b * x.stride(0) + s * x.stride(1) + h * x.stride(2) + d * x.stride(3));
}

int64_t offset(const TensorView& x, int64_t b, int64_t s, int64_t h, int64_t d) {
  return b * x.stride(0) + s * x.stride(1) + h * x.stride(2) + d * x.stride(3);
}

void assign(const TensorView& to, const TensorView& from) {
  for_each(to, [&](int64_t b, int64_t s, int64_t h, int64_t d, int64_t at) {
    store(to, at, static_cast<float>(load(from, offset(from, b, s, h, d))));
  });
}

Tensor filled(const Problem& p, int64_t rows, uint64_t seed) {
  Tensor x(p.dtype, {p.batch, rows, p.heads, p.head_dim});
  for_each(x, [&](int64_t, int64_t, int64_t, int64_t, int64_t at) {
    const uint64_t bits = split_mix(seed * 0x1000003u + static_cast<uint64_t>(at) + kSplitMixStep);
    store(x, at, static_cast<float>(static_cast<double>(bits >> 11) * 0x1p-51 - 2));
  });
  return x;
}

}  // namespace

Case::Case(const Problem& what, uint64_t seed)
    : problem(what),
      q(filled(what, what.tokens, 3 * seed)),
      k(filled(what, keys(), 3 * seed + 1)),
      v(filled(what, keys(), 3 * seed + 2)) {
  if (problem.scale == 0) problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(problem.head_dim)));
}

Mask Case::mask() const { return {key_lengths, key_mask ? key_mask.view() : TensorView{}}; }

bool Case::valid(int64_t b, int64_t s) const {
  if (problem.mask == MaskKind::kKeyLengths) return s < key_lengths[static_cast<size_t>(b)];
  if (problem.mask == MaskKind::kKeyMask) return key_mask.data<uint8_t>()[b * keys() + s] != 0;
  return true;
}

void Case::poison_masked() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for_each(k, [&](int64_t b, int64_t s, int64_t, int64_t, int64_t at) {
    if (valid(b, s)) return;
    store(k, at, nan);
    store(v, at, nan);
  });
}

void Case::set_key_lengths(std::vector<int64_t> lengths) {
  problem.mask = MaskKind::kKeyLengths;
  key_lengths = std::move(lengths);
  poison_masked();
}

void Case::set_key_mask(uint64_t seed) {
  problem.mask = MaskKind::kKeyMask;
  key_mask = Tensor(DType::kU8, {problem.batch, keys()});
  for (int64_t i = 0; i < key_mask.size(); ++i)
    key_mask.data<uint8_t>()[i] = split_mix(seed + static_cast<uint64_t>(i) + kSplitMixStep) % 3 != 0 ? 7 : 0;
  poison_masked();
}

void Case::shift_keys(const std::function<double(int64_t s, int64_t d)>& shift) {
  for_each(k, [&](int64_t, int64_t s, int64_t, int64_t d, int64_t at) {
    store(k, at, static_cast<float>(load(k, at) + shift(s, d)));
  });
}

Tensor Case::reference(const TensorView& log_sum_exp) const {
  kernels::FlashProblem flash;
  flash.batch = problem.batch;
  flash.query_tokens = problem.tokens;
  flash.key_tokens = keys();
  flash.heads = problem.heads;
  flash.head_dim = problem.head_dim;
  flash.dtype = problem.dtype;
  flash.scale = problem.scale;
  flash.mask = static_cast<kernels::MaskKind>(problem.mask);
  Tensor o(DType::kF64, {problem.batch, problem.tokens, problem.heads, problem.head_dim});
  kernels::KeyBlock block;
  block.k = k;
  block.v = v;
  block.key_lengths = key_lengths;
  if (key_mask) block.key_mask = key_mask;
  flash_attention_reference(flash, q, block, o, log_sum_exp);
  return o;
}

Shard::Shard(const Case& whole, IndexRange tokens)
    : qkv(whole.problem.dtype, {whole.problem.batch, tokens.size(), 3, whole.problem.heads, whole.problem.head_dim}),
      o_padded(whole.problem.dtype,
               {whole.problem.batch, tokens.size(), whole.problem.heads, whole.problem.head_dim + 3}),
      q(qkv.view().select(2, 0)),
      k(qkv.view().select(2, 1)),
      v(qkv.view().select(2, 2)),
      o(o_padded.view().slice(3, 0, whole.problem.head_dim)) {
  assign(q, whole.q.view().slice(1, tokens.begin, tokens.end));
  if (whole.problem.key_tokens > 0) {
    k = whole.k;
    v = whole.v;
    return;
  }
  assign(k, whole.k.view().slice(1, tokens.begin, tokens.end));
  assign(v, whole.v.view().slice(1, tokens.begin, tokens.end));
}

void write_slots(const InputSlots& slots, const Shard& shard) {
  const auto write = [](const std::vector<HeadSlot>& list, const TensorView& from) {
    int64_t next = 0;
    for (const HeadSlot& slot : list) {
      ZT_CHECK(slot.heads.begin == next, "a slot begins at head {}, the one before ends at {}", slot.heads.begin, next);
      assign(slot.out, from.slice(2, slot.heads.begin, slot.heads.end));
      next = slot.heads.end;
    }
    ZT_CHECK(next == from.extent(2), "slots cover {} of {} heads", next, from.extent(2));
  };
  write(slots.q, shard.q);
  write(slots.k, shard.k);
  write(slots.v, shard.v);
}

double distance(comm::Communicator& comm, const TensorView& a, const TensorView& b) {
  ZT_CHECK(a.shape() == b.shape(), "{} against {}", a.shape().to_string(), b.shape().to_string());
  double error = 0, norm = 0;
  for_each(a, [&](int64_t i, int64_t s, int64_t h, int64_t d, int64_t at) {
    const double x = load(a, at), y = load(b, offset(b, i, s, h, d));
    if (std::isfinite(x) && std::isfinite(y)) {
      error += (x - y) * (x - y);
      norm += y * y;
    } else if (std::isfinite(x) != std::isfinite(y)) {
      error = std::numeric_limits<double>::infinity();
    }
  });
  error = comm.all_reduce_sum(error);
  norm = comm.all_reduce_sum(norm);
  return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
}

bool same_bits(const TensorView& a, const TensorView& b) {
  ZT_CHECK(a.shape() == b.shape() && a.dtype() == b.dtype());
  const size_t size = dtype_size(a.dtype());
  bool same = true;
  for_each(a, [&](int64_t i, int64_t s, int64_t h, int64_t d, int64_t at) {
    same = same && std::memcmp(a.data<char>() + static_cast<size_t>(at) * size,
                               b.data<char>() + static_cast<size_t>(offset(b, i, s, h, d)) * size, size) == 0;
  });
  return same;
}

Tensor run_alone(comm::Communicator& comm, const Case& whole, Softmax softmax) {
  const auto alone = comm.split(comm.rank(), 0);
  ContextAttention attention = plan(whole.problem, {.softmax = softmax}, *alone, 1);
  Tensor o(whole.problem.dtype,
           {whole.problem.batch, whole.problem.tokens, whole.problem.heads, whole.problem.head_dim});
  attention.run(whole.q, whole.k, whole.v, whole.mask(), o);
  return o;
}

Tensor run_threads(const Case& whole, const Strategy& strategy, int threads) {
  const Problem& p = whole.problem;
  Tensor all(p.dtype, {p.batch, p.tokens, p.heads, p.head_dim});
  const int ranks = *strategy.layout.ulysses * *strategy.layout.ring * strategy.layout.gather.value_or(1);
  comm::run_ranks(ranks, [&](comm::Communicator& comm) {
    Stream stream(threads);
    ContextAttention attention = plan(p, strategy, comm, stream);
    const IndexRange own = attention.tokens();
    Shard shard(whole, own);
    attention.run(shard.q, shard.k, shard.v, whole.mask(), shard.o);
    copy(stream, all.view().slice(1, own.begin, own.end), shard.o);
  });
  return all;
}

double log_sum_bound(const Case& whole, int ring) {
  const double scores = std::abs(whole.problem.scale) * 4 * static_cast<double>(whole.problem.head_dim);
  const double float32 = 0x1p-24 * (5 * scores + 8 + ring + std::log(static_cast<double>(whole.keys())));
  return whole.problem.dtype == DType::kBF16 ? 0x1p-8 + float32 : float32;
}

double bound(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : 1e-5; }

bool register_layouts(const char* suite, const std::vector<int>& ranks, LayoutTest test, Degrees least,
                      std::source_location where) {
  for (const int count : ranks)
    for (int ulysses = least.ulysses; ulysses <= count; ++ulysses) {
      const int ring = count / ulysses;
      if (count % ulysses != 0 || ring < least.ring) continue;
      comm::register_rank_test(suite, fmt::format("U{}R{}", ulysses, ring), {count}, where.file_name(),
                               static_cast<int>(where.line()),
                               [=](comm::Communicator& comm) { test(comm, ulysses, ring); });
    }
  return true;
}

}  // namespace zoetrope::attention::testing
