#include "io/weights/merged_source.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "tensor/finite.h"
#include "tensor/half.h"

namespace zoetrope::io {
namespace {

// Tile of the product: its sums stay in registers (8 of AVX2's 16), and its columns of `down` in the L1 cache.
constexpr int64_t kTileRows = 4;
constexpr int64_t kTileColumns = 16;
// Rows whose part of `up` and of the sum stays in the L2 cache during a pass over all columns.
constexpr int64_t kBlockRows = 64;
constexpr int64_t kPiece = 4096;  // elements of a whole change that are converted at a time

int64_t rows_of(const TensorInfo& info) { return info.shape.rank() == 0 ? 1 : info.shape[0]; }

Tensor all_of(const WeightSource& source, const std::string& name, int64_t elements) {
  ZT_CHECK(source.info(name).shape.size() == elements, "{}: '{}' has {} elements instead of {}", source.where(name),
           name, source.info(name).shape.size(), elements);
  Tensor values = Tensor::uninitialized(DType::kF32, {elements});
  source.read_range(name, {0, elements}, values);
  return values;
}

// [rank, columns] as [tile of columns][rank][kTileColumns], the last tile filled up with zeros: in place of `down`'s
// rows, which lie a multiple of a page apart in large models.
Tensor in_tiles(const Tensor& down, int64_t rank, int64_t columns) {
  const int64_t tiles = ceil_div(columns, kTileColumns);
  Tensor packed(DType::kF32, {tiles * rank * kTileColumns});
  auto* to = packed.data<float>();
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t begin = tile * kTileColumns, count = std::min(kTileColumns, columns - begin);
    for (int64_t r = 0; r < rank; ++r, to += kTileColumns) {
      std::copy_n(down.data<float>() + r * columns + begin, count, to);
    }
  }
  return packed;
}

// Unrolled by hand: in loops over arrays GCC 12 keeps the sums in memory, at a tenth of the speed.
using Lanes = float __attribute__((vector_size(32), aligned(4), may_alias));
constexpr int64_t kLanes = 8;
static_assert(kTileColumns == 2 * kLanes);

Lanes load(const float* from) { return *reinterpret_cast<const Lanes*>(from); }

// out[0, count) += scale · sums, of one row.
void add_row(float* out, int64_t count, Lanes low, Lanes high, float scale) {
  if (count == kTileColumns) {
    *reinterpret_cast<Lanes*>(out) = load(out) + scale * low;
    *reinterpret_cast<Lanes*>(out + kLanes) = load(out + kLanes) + scale * high;
    return;
  }
  for (int64_t j = 0; j < count; ++j) out[j] += scale * (j < kLanes ? low[j] : high[j - kLanes]);
}

// out[row][0, count) += scale · Σ_r up[row][r] · tile[r], for four rows, and for one.
void add_four_rows(float* out, int64_t columns, int64_t count, const float* up, const float* tile, int64_t rank,
                   float scale) {
  Lanes a0{}, a1{}, b0{}, b1{}, c0{}, c1{}, d0{}, d1{};
  const float *b = up + rank, *c = b + rank, *d = c + rank;
  for (int64_t r = 0; r < rank; ++r, tile += kTileColumns) {
    const Lanes low = load(tile), high = load(tile + kLanes);
    a0 += up[r] * low;
    a1 += up[r] * high;
    b0 += b[r] * low;
    b1 += b[r] * high;
    c0 += c[r] * low;
    c1 += c[r] * high;
    d0 += d[r] * low;
    d1 += d[r] * high;
  }
  add_row(out, count, a0, a1, scale);
  add_row(out + columns, count, b0, b1, scale);
  add_row(out + 2 * columns, count, c0, c1, scale);
  add_row(out + 3 * columns, count, d0, d1, scale);
}

void add_one_row(float* out, int64_t count, const float* up, const float* tile, int64_t rank, float scale) {
  Lanes low{}, high{};
  for (int64_t r = 0; r < rank; ++r, tile += kTileColumns) {
    low += up[r] * load(tile);
    high += up[r] * load(tile + kLanes);
  }
  add_row(out, count, low, high, scale);
}

struct Extents {
  int64_t rows, columns, rank;  // rank 0: a whole matrix
};

Extents extents_of(const WeightSource& from, const DeltaMatrix& matrix) {
  const Shape shape = from.info(matrix.whole.empty() ? matrix.up : matrix.whole).shape;
  const int64_t rows = shape.rank() == 0 ? 1 : shape[0], columns = shape.size() / rows;
  if (!matrix.whole.empty()) return {rows, columns, 0};
  return {rows, from.info(matrix.down).shape.size() / columns, columns};
}

// up · down, read once and added row by row.
class Product {
 public:
  Product(const WeightSource& from, const DeltaMatrix& matrix, int64_t rows, int64_t columns)
      : columns_(columns),
        rank_(from.info(matrix.up).shape.size() / rows),
        up_(all_of(from, matrix.up, rows * rank_)),
        down_(in_tiles(all_of(from, matrix.down, rank_ * columns), rank_, columns)) {}

  // out [rows.size(), columns] += scale · these rows.
  void add(IndexRange rows, float* out, float scale) const {
    for (int64_t begin = rows.begin; begin < rows.end; begin += kBlockRows) {
      const int64_t end = std::min(rows.end, begin + kBlockRows);
      for (int64_t column = 0; column < columns_; column += kTileColumns) {
        const float* tile = down_.data<float>() + column * rank_;
        const int64_t count = std::min(kTileColumns, columns_ - column);
        int64_t row = begin;
        const auto place = [&] { return out + (row - rows.begin) * columns_ + column; };
        const auto factors = [&] { return up_.data<float>() + row * rank_; };
        for (; row + kTileRows <= end; row += kTileRows) {
          add_four_rows(place(), columns_, count, factors(), tile, rank_, scale);
        }
        for (; row < end; ++row) add_one_row(place(), count, factors(), tile, rank_, scale);
      }
    }
  }

 private:
  int64_t columns_, rank_;
  Tensor up_, down_;
};

// Called with the elements of a sum that are complete, while they are in cache.
using Summed = std::function<void(IndexRange elements)>;

void add_product(float* out, int64_t rows, int64_t columns, const WeightDelta& delta, const Summed& summed) {
  const Product product(*delta.from, delta.first, rows, columns);
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const IndexRange block{begin, std::min(rows, begin + kBlockRows)};
    product.add(block, out + begin * columns, static_cast<float>(delta.scale));
    summed({block.begin * columns, block.end * columns});
  }
}

// One block of rows at a time: neither product is ever stored completely.
void add_hadamard(float* out, int64_t rows, int64_t columns, const WeightDelta& delta, const Summed& summed) {
  const Product first(*delta.from, delta.first, rows, columns), second(*delta.from, delta.second, rows, columns);
  const Tensor one = Tensor::uninitialized(DType::kF32, {std::min(rows, kBlockRows) * columns});
  const Tensor other = Tensor::uninitialized(DType::kF32, one.shape());
  float *a = one.data<float>(), *b = other.data<float>();
  const auto scale = static_cast<float>(delta.scale);
  for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const IndexRange block{begin, std::min(rows, begin + kBlockRows)};
    const int64_t elements = block.size() * columns;
    std::fill_n(a, elements, 0.0f);
    std::fill_n(b, elements, 0.0f);
    first.add(block, a, 1);
    second.add(block, b, 1);
    for (int64_t i = 0; i < elements; ++i) out[begin * columns + i] += scale * (a[i] * b[i]);
    summed({begin * columns, begin * columns + elements});
  }
}

Tensor values_of(const WeightSource& from, const DeltaMatrix& matrix, const Extents& size) {
  if (size.rank == 0) return all_of(from, matrix.whole, size.rows * size.columns);
  Tensor values(DType::kF32, {size.rows * size.columns});
  Product(from, matrix, size.rows, size.columns).add({0, size.rows}, values.data<float>(), 1);
  return values;
}

void add_kronecker(float* out, int64_t rows, int64_t columns, const WeightDelta& delta, const Summed& summed) {
  const Extents a = extents_of(*delta.from, delta.first), b = extents_of(*delta.from, delta.second);
  ZT_CHECK(a.rows * b.rows == rows && a.columns * b.columns == columns);
  const Tensor first = values_of(*delta.from, delta.first, a), second = values_of(*delta.from, delta.second, b);
  const auto scale = static_cast<float>(delta.scale);
  for (int64_t row = 0; row < rows; ++row) {
    const float* large = first.data<float>() + row / b.rows * a.columns;
    const float* small = second.data<float>() + row % b.rows * b.columns;
    for (int64_t i = 0; i < a.columns; ++i) {
      const float factor = scale * large[i];
      float* place = out + row * columns + i * b.columns;
      for (int64_t j = 0; j < b.columns; ++j) place[j] += factor * small[j];
    }
    summed({row * columns, (row + 1) * columns});
  }
}

void add_whole(float* out, int64_t elements, const WeightDelta& delta, const Summed& summed) {
  ZT_CHECK(delta.from->info(delta.first.whole).shape.size() == elements);
  const auto scale = static_cast<float>(delta.scale);
  float piece[kPiece];
  for (int64_t begin = 0; begin < elements; begin += kPiece) {
    const int64_t count = std::min(kPiece, elements - begin);
    delta.from->read_range(delta.first.whole, {begin, begin + count}, TensorView(piece, DType::kF32, {count}));
    for (int64_t i = 0; i < count; ++i) out[begin + i] += scale * piece[i];
    summed({begin, begin + count});
  }
}

class MergedSource final : public WeightSource {
 public:
  MergedSource(std::shared_ptr<const WeightSource> base, WeightDeltas deltas, bool check_finite)
      : base_(std::move(base)), deltas_(std::move(deltas)), check_finite_(check_finite) {
    for (const auto& [name, changes] : deltas_) {
      for (const WeightDelta& change : changes) {
        if (std::find(from_.begin(), from_.end(), change.from) == from_.end()) from_.push_back(change.from);
      }
    }
  }

  bool contains(const std::string& name) const override { return base_->contains(name); }
  std::vector<std::string> names() const override { return base_->names(); }
  TensorInfo info(const std::string& name) const override {
    TensorInfo info = base_->info(name);
    if (deltas_.count(name) == 0 || !info.dtype) return info;
    info.dtype = DType::kF32;
    info.dtype_name = dtype_name(DType::kF32);
    info.bytes = static_cast<uint64_t>(info.shape.size()) * sizeof(float);
    return info;
  }
  std::string where(const std::string& name) const override { return base_->where(name); }
  TensorView mapped(const std::string& name) const override {
    return deltas_.count(name) == 0 ? base_->mapped(name) : TensorView();
  }
  void read(const std::string& name, const TensorView& out) const override {
    const auto found = deltas_.find(name);
    if (found == deltas_.end()) return base_->read(name, out);
    if (out.dtype() == DType::kF32) return read_merged(name, found->second, out.data<float>());
    if (out.dtype() != DType::kBF16) {
      fail("{}: tensor '{}' is a sum in F32 and cannot be read as {}", where(name), name, dtype_name(out.dtype()));
    }
    const Tensor sum = Tensor::uninitialized(DType::kF32, out.shape());
    read_merged(name, found->second, sum.data<float>());
    std::transform(sum.data<float>(), sum.data<float>() + sum.size(), out.data<BFloat16>(), to_bfloat16);
  }
  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override {
    if (deltas_.count(name) == 0) return base_->read_range(name, range, out);
    WeightSource::read_range(name, range, out);
  }
  bool reads_parts(const std::string& name) const override {
    return deltas_.count(name) == 0 && base_->reads_parts(name);
  }
  std::optional<Int8Codes> int8_codes(const std::string& name) const override {
    return deltas_.count(name) == 0 ? base_->int8_codes(name) : std::nullopt;
  }
  void will_need(const std::string& name) const override { base_->will_need(name); }
  void release(const std::string& name) const override {
    base_->release(name);
    const auto found = deltas_.find(name);
    if (found == deltas_.end()) return;
    for (const WeightDelta& change : found->second) {
      for (const DeltaMatrix* matrix : {&change.first, &change.second})
        for (const std::string* part : {&matrix->up, &matrix->down, &matrix->whole})
          if (!part->empty()) change.from->release(*part);
    }
  }
  void require_unchanged() const override {
    base_->require_unchanged();
    for (const auto& from : from_) from->require_unchanged();
  }
  std::string identity() const override {
    std::string text = base_->identity();
    if (text.empty()) return {};
    uint64_t hash = fnv1a64("");
    for (const auto& from : from_) {
      const std::string part = from->identity();
      if (part.empty()) return {};
      hash = fnv1a64(part, hash);
    }
    for (const auto& [name, changes] : deltas_) {
      for (const WeightDelta& c : changes) {
        const auto from = std::find(from_.begin(), from_.end(), c.from) - from_.begin();
        hash = fnv1a64(fmt::format("{} {} {} {} {} {}|", name, from, c.first.up, c.first.down, c.first.whole, c.scale),
                       hash);
        if (c.join == DeltaJoin::kNone) continue;
        hash = fnv1a64(
            fmt::format("{} {} {} {}|", static_cast<int>(c.join), c.second.up, c.second.down, c.second.whole), hash);
      }
    }
    return text + fmt::format("changed {} {:016x}\n", deltas_.size(), hash);
  }

 private:
  void read_merged(const std::string& name, const std::vector<WeightDelta>& changes, float* out) const {
    const TensorInfo info = base_->info(name);
    const int64_t elements = info.shape.size(), rows = rows_of(info);
    base_->read_range(name, {0, elements}, TensorView(out, DType::kF32, {elements}));
    for (const WeightDelta& change : changes) {
      const Summed summed = [&](IndexRange part) {
        if (check_finite_) require_finite(name, change, out, part);
      };
      if (change.join == DeltaJoin::kHadamard) add_hadamard(out, rows, elements / rows, change, summed);
      else if (change.join == DeltaJoin::kKronecker) add_kronecker(out, rows, elements / rows, change, summed);
      else if (change.first.whole.empty()) add_product(out, rows, elements / rows, change, summed);
      else add_whole(out, elements, change, summed);
    }
  }

  // Checks a part of `out`, to which `change` was added last.
  void require_finite(const std::string& name, const WeightDelta& change, float* out, IndexRange part) const {
    const auto found = first_non_finite({out + part.begin, DType::kF32, {part.size()}});
    if (!found) return;
    const int64_t element = part.begin + found->index;
    float before = 0;
    base_->read_range(name, {element, element + 1}, TensorView(&before, DType::kF32, {1}));
    if (!std::isfinite(before)) {
      fail("{}: tensor '{}' holds {} at element {}; {}", where(name), name, before, element, kGoOnAnyway);
    }
    const std::string& part_name = change.first.whole.empty() ? change.first.up : change.first.whole;
    fail("{}: added to '{}' with a factor of {}, it makes element {} of the sum {}; lower its strength, or {}",
         change.from->where(part_name), name, change.scale, element, found->value, kGoOnAnyway);
  }

  std::shared_ptr<const WeightSource> base_;
  WeightDeltas deltas_;
  const bool check_finite_;
  std::vector<std::shared_ptr<const WeightSource>> from_;  // each once
};

}  // namespace

std::shared_ptr<const WeightSource> merged_source(std::shared_ptr<const WeightSource> base, WeightDeltas deltas,
                                                  bool check_finite) {
  return std::make_shared<MergedSource>(std::move(base), std::move(deltas), check_finite);
}

int64_t merge_scratch_elements(int64_t rows, int64_t columns, int64_t rank) {
  // `up`; `down` as it is read, and in tiles.
  return rows * rank + (columns + round_up(columns, kTileColumns)) * rank;
}

int64_t merge_scratch_elements(int64_t rows, int64_t columns, const WeightDelta& delta) {
  const Extents a = extents_of(*delta.from, delta.first);
  const auto product = [](const Extents& e) {
    return e.rank == 0 ? 0 : merge_scratch_elements(e.rows, e.columns, e.rank);
  };
  if (delta.join == DeltaJoin::kNone) return product(a);
  const Extents b = extents_of(*delta.from, delta.second);
  if (delta.join == DeltaJoin::kHadamard) return product(a) + product(b) + 2 * std::min(rows, kBlockRows) * columns;
  return product(a) + product(b) + a.rows * a.columns + b.rows * b.columns;
}

}  // namespace zoetrope::io
