#include "io/weights/formula_source.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "io/weights/in_parts.h"
#include "tensor/half.h"

namespace zoetrope::io {
namespace {

// Elements [first, first + count). One loop without branches or calls, so that the compiler vectorises it:
// 64-bit products out of three 32-bit ones, and instead of a conversion of 64-bit integers, which AVX2 lacks, the 24
// bits become the mantissa of a double. This file is compiled without fused multiply-adds, so that the formula's two
// roundings are the same on every machine.
void fill_floats(uint64_t key, int64_t first, int64_t count, double offset, double amplitude, float* out) {
  uint64_t state = key + static_cast<uint64_t>(first) * kSplitMixStep;
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t z = split_mix(state + static_cast<uint64_t>(i + 1) * kSplitMixStep);
    const double centred = std::bit_cast<double>((z >> 40) | 0x4330000000000000u) - (0x1p52 + 0x1p23);
    out[i] = static_cast<float>(offset + amplitude * (centred * 0x1p-23));
  }
}

}  // namespace

FormulaSource::FormulaSource(std::string where, uint64_t seed, std::map<std::string, Formula> formulas, int threads)
    : where_(std::move(where)), seed_(seed), formulas_(std::move(formulas)), threads_(threads) {}

std::vector<std::string> FormulaSource::names() const {
  std::vector<std::string> names;
  for (const auto& item : formulas_) names.push_back(item.first);
  return names;
}

const Formula& FormulaSource::formula(const std::string& name) const {
  const auto found = formulas_.find(name);
  if (found == formulas_.end()) fail("{}: tensor '{}' is missing among {}", where_, name, formulas_.size());
  return found->second;
}

TensorInfo FormulaSource::info(const std::string& name) const {
  TensorInfo info;
  info.dtype_name = "F32";
  info.dtype = DType::kF32;
  info.shape = formula(name).shape;
  for (int axis = 0; axis < info.shape.rank(); ++axis) info.extents.push_back(info.shape[axis]);
  info.bytes = static_cast<uint64_t>(info.shape.size()) * sizeof(float);
  return info;
}

std::string FormulaSource::identity() const {
  uint64_t hash = fnv1a64(fmt::to_string(seed_));
  for (const auto& [name, f] : formulas_) {
    hash = fnv1a64(fmt::format("{} {} {} {}", name, f.shape.to_string(), f.offset, f.amplitude), hash);
  }
  return fmt::format("formulas {} {:016x}\n", formulas_.size(), hash);
}

void FormulaSource::read_range(const std::string& name, IndexRange range, const TensorView& out) const {
  const Formula& f = formula(name);
  ZT_CHECK(out.size() == range.size() && range.end <= f.shape.size());
  const uint64_t key = fnv1a64(name) ^ split_mix(seed_);
  if (out.dtype() == DType::kF32) {
    return fill_floats(key, range.begin, range.size(), f.offset, f.amplitude, out.data<float>());
  }
  if (out.dtype() != DType::kBF16) {
    fail("{}: tensor '{}' is F32 by formula and cannot be read as {}", where_, name, dtype_name(out.dtype()));
  }
  constexpr int64_t kPiece = 2048;  // stays in the L1 cache
  float piece[kPiece];
  auto* to = out.data<BFloat16>();
  for (int64_t begin = range.begin; begin < range.end; begin += kPiece) {
    const int64_t count = std::min(kPiece, range.end - begin);
    fill_floats(key, begin, count, f.offset, f.amplitude, piece);
    for (int64_t i = 0; i < count; ++i) *to++ = to_bfloat16(piece[i]);
  }
}

void FormulaSource::read(const std::string& name, const TensorView& out) const {
  const TensorView flat = out.reshape({out.size()});
  in_parts(out.size(), threads_,
           [&](IndexRange range) { read_range(name, range, flat.slice(0, range.begin, range.end)); });
}

}  // namespace zoetrope::io
