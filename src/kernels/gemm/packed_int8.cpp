#include "kernels/gemm/packed_int8.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/gemm/int8_groups.h"
#include "kernels/gemm/stored_rows.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kTerms = 4;        // of a dot product
constexpr uint8_t kOffset = 128;     // of stored weights
constexpr int64_t kPassBlocks = 8;   // of the largest size, quantised at a time: bounds scratch
constexpr int64_t kFewestRows = 96;  // of a block; fewer do not repay reading a panel
constexpr int64_t kAlignment = 64;

// An item is a block of rows times a few panels. Its sums, and the block's terms of a step, stay in the L2 cache while
// its panels are read. With all terms in one step and one panel, the block came from the L3 cache for every panel: 8960
// terms ran at 74 % of the peak, and at 86 so (Zen 4). With 256 rows of int16, 7800 rows took 1.2 times as long as with
// 128 (Zen 3).
constexpr int64_t kMostRowBytes = 256;  // of a term; rounded down to rows that the kernel takes
constexpr int64_t kItemColumns = 256;
constexpr int64_t kStepGroups = 8;

int64_t panel_terms(const PackedMatrix& matrix) { return int8_stored_terms(matrix.k); }
const float* panel_scales(const PackedMatrix& matrix, const std::byte* panel) {
  return reinterpret_cast<const float*>(panel + panel_terms(matrix) * panel_columns(matrix.layout));
}

// Of what is not a number, 0: its scale is none either.
int8_t quantised(float value) {
  if (!std::isfinite(value)) return 0;
  return static_cast<int8_t>(std::nearbyint(std::clamp(value, -kInt8Most, kInt8Most)));
}

// NaN counts as the largest.
float largest_magnitude(const float* row, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::bit_cast<uint32_t>(row[i]) & 0x7fffffffu);
  return std::bit_cast<float>(most);
}

// The integers that times `scale` are the row. Rotated back in float32, they are off by less than a thousandth.
void restore_codes(std::span<const float> row, float scale, uint8_t* to) {
  for (size_t i = 0; i < row.size(); ++i) {
    const float code = scale == 0 ? 0 : std::nearbyint(row[i] / scale);
    ZT_CHECK(-128 <= code && code <= 127, "int8 code {}", code);
    to[i] = static_cast<uint8_t>(static_cast<int>(code) + kOffset);
  }
}

}  // namespace

size_t int8_panel_bytes(const PackedMatrix& matrix) {
  const int64_t columns = panel_columns(matrix.layout);
  return static_cast<size_t>((panel_terms(matrix) + static_cast<int64_t>(sizeof(float))) * columns);
}

// The columns of a panel are quantised side by side and then written four terms of all of them at a time.
void int8_pack(std::span<const TensorView> stored, IndexRange rows, const PackedMatrix& matrix,
               std::span<const float> given, std::byte* out) {
  ZT_CHECK(int8_rotation_possible(matrix.rotation, matrix.k), "rotation {} of {}", matrix.rotation, matrix.k);
  ZT_CHECK(given.empty() ? matrix.rotation == kInt8Hadamard : std::ssize(given) == matrix.n, "{} scales", given.size());
  const StoredRows source(stored, matrix.k);
  const int64_t columns = panel_columns(matrix.layout), terms = panel_terms(matrix);
  std::vector<float> row(static_cast<size_t>(matrix.k));
  std::vector<uint8_t> panel(static_cast<size_t>(columns * terms));
  for (int64_t first = rows.begin; first < rows.end; first += columns) {
    std::byte* const to = out + static_cast<size_t>(first / columns) * int8_panel_bytes(matrix);
    auto* const scales = reinterpret_cast<float*>(to + terms * columns);
    std::fill(panel.begin(), panel.end(), kOffset);
    for (int64_t column = 0; column < columns; ++column) {
      scales[column] = 0;
      if (first + column >= rows.end) continue;
      source.widen(first + column - rows.begin, row.data());
      rotate_row(row.data(), matrix.k, matrix.rotation);
      uint8_t* const bytes = panel.data() + column * terms;
      if (!given.empty()) {
        scales[column] = given[static_cast<size_t>(first + column)];
        restore_codes(row, scales[column], bytes);
        continue;
      }
      const Int8Scale scale = int8_scale(largest_magnitude(row.data(), matrix.k));
      scales[column] = scale.scale;
      for (int64_t i = 0; i < matrix.k; ++i)
        bytes[i] = static_cast<uint8_t>(quantised(row[static_cast<size_t>(i)] * scale.factor) + kOffset);
    }
    constexpr int64_t kLine = 64;
    for (int64_t line = 0; line < terms; line += kLine) {
      for (int64_t column = 0; column < columns; ++column) {
        for (int64_t i = line; i < std::min(line + kLine, terms); i += kTerms)
          std::memcpy(to + i * columns + column * kTerms, panel.data() + column * terms + i, kTerms);
      }
    }
  }
}

namespace {

// Where the parts of a pass lie in scratch memory.
struct Pass {
  int64_t rows, groups, terms;  // terms as they are stored
  int64_t block_rows;           // of every block but the last
  int64_t largest_block;        // also of fewer rows
  int64_t term_bytes;           // of x
  Pass(const PackedMatrix& w, int64_t all_rows, int threads, const Int8Kernel& kernel)
      : groups(int8_groups(w.k)), terms(int8_stored_terms(w.k)), term_bytes(kernel.term_bytes) {
    constexpr int64_t kItemsPerThread = 4;
    const int64_t most = kMostRowBytes / kernel.term_bytes / kernel.rows * kernel.rows;
    rows = std::min(kPassBlocks * most, all_rows);
    const int64_t wanted = ceil_div(kItemsPerThread * threads, ceil_div(w.n, kItemColumns));
    const int64_t count = std::clamp(wanted, ceil_div(rows, most), ceil_div(rows, kFewestRows));
    block_rows = round_up(ceil_div(rows, count), kernel.rows);
    largest_block = std::min(most, round_up(rows, kernel.rows));
  }
  int64_t x_bytes() const { return round_up(rows * terms * term_bytes, kAlignment); }
  int64_t scale_bytes() const { return round_up(rows * groups * static_cast<int64_t>(sizeof(float)), kAlignment); }
  // Of a thread.
  int64_t sums() const { return largest_block * kItemColumns; }
  size_t bytes(int threads) const {
    return static_cast<size_t>(x_bytes() + 2 * scale_bytes() + sums() * threads * static_cast<int64_t>(sizeof(float)));
  }
};

class Product {
 public:
  Product(Stream& stream, const PackedMatrix& w, const Int8Kernel& kernel, const Pass& pass)
      : w_(w), kernel_(kernel), pass_(pass) {
    auto* at = static_cast<std::byte*>(stream.scratch().allocate(pass.bytes(stream.team().size())));
    x_ = at;
    scales_ = reinterpret_cast<float*>(at += pass.x_bytes());
    corrections_ = reinterpret_cast<int32_t*>(at += pass.scale_bytes());
    sums_ = reinterpret_cast<float*>(at + pass.scale_bytes());
  }

  void run(Stream& stream, const TensorView& x, const Epilogue& epilogue) {
    const int64_t rows = x.extent(0);
    stream.team().parallel_for(rows, 4, [&](IndexRange range, int) { quantise(x, range); });
    const int64_t items = ceil_div(w_.n, kItemColumns), blocks = ceil_div(rows, pass_.block_rows);
    std::atomic<int64_t> next = 0;
    stream.team().run([&](int thread) {
      float* sums = sums_ + thread * pass_.sums();
      auto work = [&] {
        for (int64_t item = next++; item < items * blocks; item = next++) {
          const int64_t first = item % blocks * pass_.block_rows, column = item / blocks * kItemColumns;
          multiply({column, std::min(w_.n, column + kItemColumns)}, {first, std::min(rows, first + pass_.block_rows)},
                   epilogue, sums);
        }
      };
      if (kernel_.with_tiles == nullptr) work();
      else kernel_.with_tiles([](void* argument) { (*static_cast<decltype(work)*>(argument))(); }, &work);
    });
  }

 private:
  // Rows of a group lie side by side: a block reads them in order.
  std::byte* x_of(int64_t group, int64_t row) const {
    const int64_t terms = group * kInt8Group * pass_.rows + row * int8_stored_terms(w_.k, group);
    return x_ + terms * pass_.term_bytes;
  }
  int64_t at(int64_t group, int64_t row) const { return group * pass_.rows + row; }

  void quantise(const TensorView& x, IndexRange rows) const {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const BFloat16* from = x.data<BFloat16>() + row * x.stride(0);
      for (int64_t group = 0; group < pass_.groups; ++group) {
        const int64_t first = group * kInt8Group;
        kernel_.quantise(from + first, std::min(kInt8Group, w_.k - first), w_.rotation, x_of(group, row),
                         scales_ + at(group, row), corrections_ + at(group, row));
      }
    }
  }

  void multiply(IndexRange columns, IndexRange rows, const Epilogue& epilogue, float* sums) const {
    for (int64_t group = 0; group < pass_.groups; group += kStepGroups) {
      const IndexRange groups{group, std::min(pass_.groups, group + kStepGroups)};
      for (int64_t column = columns.begin; column < columns.end; column += kernel_.columns)
        multiply_panel(column / kernel_.columns, groups, rows, epilogue,
                       sums + (column - columns.begin) * pass_.block_rows);
    }
  }

  // Group by group, so that a group of the panel stays in the L1 cache while all rows are multiplied with it.
  void multiply_panel(int64_t panel, IndexRange groups, IndexRange rows, const Epilogue& epilogue, float* sums) const {
    const auto panel_bytes = static_cast<int64_t>(int8_panel_bytes(w_)), group_bytes = kInt8Group * kernel_.columns;
    const std::byte* const w = w_.data + panel * panel_bytes;
    const int64_t columns = std::min(kernel_.columns, w_.n - panel * kernel_.columns);
    const Epilogue here = moved(epilogue, rows.begin, panel * kernel_.columns);
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      const bool last = group + 1 == pass_.groups;
      Int8Tile tile;
      tile.terms = int8_stored_terms(w_.k, group);
      tile.w = w + group * group_bytes;
      if (last) tile.w_scales = panel_scales(w_, w);
      const bool same_panel = group + 1 < groups.end;
      const auto* const next = static_cast<const uint8_t*>(tile.w) +
                               (same_panel ? group_bytes : panel_bytes - (group - groups.begin) * group_bytes);
      const int64_t next_bytes_per_row = group_bytes / (rows.end - rows.begin);
      for (int64_t row = rows.begin; row < rows.end; row += kernel_.call_rows) {
        const int64_t count = std::min(kernel_.call_rows, rows.end - row);
        tile.x = x_of(group, row);
        tile.next = next + (row - rows.begin) * next_bytes_per_row;
        tile.scales = scales_ + at(group, row);
        tile.corrections = corrections_ + at(group, row);
        tile.to = sums + (row - rows.begin) * kernel_.columns;
        tile.from = group == 0 ? nullptr : tile.to;
        kernel_.multiply(tile, count);
        if (last) kernel_.finish(moved(here, row - rows.begin, 0), tile.to, kernel_.columns, count, columns);
      }
    }
  }

  const PackedMatrix& w_;
  const Int8Kernel& kernel_;
  const Pass pass_;
  std::byte* x_ = nullptr;          // [groups][rows][terms]
  float* scales_ = nullptr;         // [groups][rows]
  int32_t* corrections_ = nullptr;  // [groups][rows]
  float* sums_ = nullptr;           // [threads][panels of an item][rows of a block][columns]
};

}  // namespace

void int8_packed_gemm(Stream& stream, const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue,
                      const Int8Kernel& kernel) {
  const int64_t rows = x.extent(0);
  const Arena::Scope scope(stream.scratch());
  const Pass pass(w, rows, stream.team().size(), kernel);
  Product product(stream, w, kernel, pass);
  for (int64_t first = 0; first < rows; first += pass.rows)
    product.run(stream, x.slice(0, first, std::min(rows, first + pass.rows)), moved(epilogue, first, 0));
}

size_t int8_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads, const Int8Kernel& kernel) {
  if (rows == 0) return 0;
  return Pass(w, rows, threads, kernel).bytes(threads);
}

std::vector<float> int8_product_reference(const TensorView& x, const PackedMatrix& w) {
  const int64_t rows = x.extent(0), columns = panel_columns(w.layout), groups = int8_groups(w.k);
  std::vector<float> product(static_cast<size_t>(rows * w.n)), row(static_cast<size_t>(w.k));
  std::vector<int8_t> narrow(row.size());
  std::vector<float> scales(static_cast<size_t>(groups));
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t i = 0; i < w.k; ++i) row[static_cast<size_t>(i)] = to_float(x.data<BFloat16>()[m * x.stride(0) + i]);
    rotate_row(row.data(), w.k, w.rotation);
    for (int64_t group = 0; group < groups; ++group) {
      const int64_t first = group * kInt8Group, end = std::min(w.k, first + kInt8Group);
      const Int8Scale scale = int8_scale(largest_magnitude(row.data() + first, end - first));
      scales[static_cast<size_t>(group)] = scale.scale;
      for (int64_t i = first; i < end; ++i)
        narrow[static_cast<size_t>(i)] = quantised(row[static_cast<size_t>(i)] * scale.factor);
    }
    for (int64_t n = 0; n < w.n; ++n) {
      const std::byte* const panel = w.data + static_cast<size_t>(n / columns) * int8_panel_bytes(w);
      const auto* const bytes = reinterpret_cast<const uint8_t*>(panel);
      float y = 0;
      for (int64_t group = 0; group < groups; ++group) {
        int32_t sum = 0;
        for (int64_t i = group * kInt8Group; i < std::min(w.k, (group + 1) * kInt8Group); ++i) {
          const int32_t weight = bytes[(i / kTerms * columns + n % columns) * kTerms + i % kTerms] - kOffset;
          sum += narrow[static_cast<size_t>(i)] * weight;
        }
        y = std::fma(static_cast<float>(sum), scales[static_cast<size_t>(group)], y);
      }
      product[static_cast<size_t>(m * w.n + n)] = y * panel_scales(w, panel)[n % columns];
    }
  }
  return product;
}

}  // namespace zoetrope::kernels
