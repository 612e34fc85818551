#include "kernels/gemm/packed_onednn.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/gemm/onednn_matmul.h"
#include "kernels/gemm/pack_pairs.h"
#include "kernels/gemm/stored_rows.h"
#include "kernels/onednn.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kSlab = 512;         // rows of w
constexpr int64_t kRowsAtOnce = 1024;  // of x: their sums are what the epilogue finds in cache

struct Slab {
  int64_t row, rows;  // of w
  int64_t offset;     // bytes
};

std::vector<Slab> slabs_of(const PackedMatrix& matrix) {
  ZT_CHECK(matrix.dtype == DType::kBF16, "oneDNN's layout is for BF16");
  std::vector<Slab> slabs;
  int64_t offset = 0;
  for (int64_t row = 0; row < matrix.n; row += kSlab) {
    const int64_t rows = std::min(kSlab, matrix.n - row);
    slabs.push_back({row, rows, offset});
    offset += static_cast<int64_t>((onednn_packed_desc(rows, matrix.k).get_size() + 63) / 64 * 64);
  }
  slabs.push_back({matrix.n, 0, offset});
  return slabs;
}

void reorder(const dnnl::memory& from, const dnnl::memory& to) {
  dnnl::memory source = from, target = to;
  dnnl::reorder(source, target).execute(onednn_stream(), source, target);
  onednn_stream().wait();
}

dnnl::memory::desc plain_desc(int64_t n, int64_t k) { return {{k, n}, dnnl::memory::data_type::bf16, {1, k}}; }

// The layout as blocks of pairs, which is what oneDNN chooses where it has bf16 instructions.
std::optional<PairBlocks> pair_blocks(const dnnl::memory::desc& desc) {
  const dnnl_blocking_desc_t& blocks = desc.data.format_desc.blocking;
  const auto inner = [&](int i, int axis) { return blocks.inner_idxs[i] == axis ? blocks.inner_blks[i] : 0; };
  if (desc.data.format_kind != dnnl_blocked || desc.data.offset0 != 0 || blocks.inner_nblks != 3) return {};
  if (inner(0, 0) * inner(2, 0) != kPairTerms || inner(2, 0) != 2 || inner(1, 1) % 16 != 0) return {};
  if (inner(1, 1) == 0) return {};
  return PairBlocks{inner(1, 1), blocks.strides[0], blocks.strides[1]};
}

}  // namespace

// FNV-1a over what makes the layouts: two machines or versions that order elements differently get different names.
std::string onednn_layout_name(const PackedMatrix& matrix) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<uint64_t>(value) >> (8 * byte) & 0xff)) * 0x100000001b3u;
    }
  };
  for (const Slab& slab : slabs_of(matrix)) {
    if (slab.rows == 0) break;
    const dnnl_memory_desc_t desc = onednn_packed_desc(slab.rows, matrix.k).data;
    const dnnl_blocking_desc_t& blocks = desc.format_desc.blocking;
    ZT_CHECK(desc.format_kind == dnnl_blocked, "oneDNN's layout is no blocking");
    add(desc.offset0);
    add(desc.ndims);
    add(blocks.inner_nblks);
    for (int axis = 0; axis < desc.ndims; ++axis) {
      add(desc.padded_dims[axis]);
      add(blocks.strides[axis]);
    }
    for (int block = 0; block < blocks.inner_nblks; ++block) {
      add(blocks.inner_blks[block]);
      add(blocks.inner_idxs[block]);
    }
  }
  return fmt::format("onednn{}.{:016x}", kSlab, hash);
}

size_t onednn_packed_bytes(const PackedMatrix& matrix) { return static_cast<size_t>(slabs_of(matrix).back().offset); }

void onednn_pack(std::span<const TensorView> stored, const PackedMatrix& matrix, std::byte* out) {
  const OneThread alone;
  const StoredRows source(stored, matrix.k);
  std::vector<BFloat16> rows;
  for (const Slab& slab : slabs_of(matrix)) {
    if (slab.rows == 0) break;
    const dnnl::memory::desc layout = onednn_packed_desc(slab.rows, matrix.k);
    if (const auto blocks = pair_blocks(layout)) {
      source.pack(slab.row, slab.rows, *blocks, reinterpret_cast<BFloat16*>(out + slab.offset));
      continue;
    }
    rows.resize(static_cast<size_t>(slab.rows * matrix.k));
    source.round(slab.row, slab.rows, rows.data());
    reorder(onednn_memory(plain_desc(slab.rows, matrix.k), rows.data()), onednn_memory(layout, out + slab.offset));
  }
}

void onednn_unpack(const PackedMatrix& matrix, BFloat16* out) {
  for (const Slab& slab : slabs_of(matrix)) {
    if (slab.rows == 0) break;
    reorder(onednn_memory(onednn_packed_desc(slab.rows, matrix.k), matrix.data + slab.offset),
            onednn_memory(plain_desc(slab.rows, matrix.k), out + slab.row * matrix.k));
  }
}

namespace {

// oneDNN 2.6 multiplies rows that stand apart with its reference, a thousand times slower, wherever it has bf16
// instructions, of vectors or of matrix units, and only there is this layout chosen: so they are brought together.
size_t row_bytes(const PackedMatrix& w, int64_t rows) {
  return static_cast<size_t>(std::min(kRowsAtOnce, rows) * w.k) * sizeof(BFloat16);
}
BFloat16* allocate_rows(Stream& stream, const PackedMatrix& w, int64_t rows) {
  return static_cast<BFloat16*>(stream.scratch().allocate(row_bytes(w, rows)));
}
void copy_rows(Stream& stream, const TensorView& x, BFloat16* to) {
  constexpr int64_t kElementsWorthAThread = 16384;
  const int64_t k = x.extent(1);
  stream.team().parallel_for(x.extent(0), std::max<int64_t>(1, kElementsWorthAThread / k), [&](IndexRange range, int) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      std::memcpy(to + row * k, x.data<BFloat16>() + row * x.stride(0), static_cast<size_t>(k) * sizeof(BFloat16));
    }
  });
}

}  // namespace

void onednn_packed_gemm(Stream& stream, const TensorView& x, const PackedMatrix& w, const Epilogue& epilogue,
                        decltype(PackedKernel::finish) finish) {
  const std::vector<Slab> slabs = slabs_of(w);
  const Arena::Scope scope(stream.scratch());
  const int64_t most = std::min(kRowsAtOnce, x.extent(0)) * std::min(kSlab, w.n);
  auto* sums = static_cast<float*>(stream.scratch().allocate(static_cast<size_t>(most) * sizeof(float)));
  const bool apart = x.extent(0) > 1 && x.stride(0) != w.k;
  BFloat16* dense = apart ? allocate_rows(stream, w, x.extent(0)) : nullptr;
  MatmulCall call;
  call.k = w.k;
  call.packed = true;
  call.x_stride = w.k;
  call.in_dtype = DType::kBF16;
  call.out = sums;
  for (int64_t row = 0; row < x.extent(0); row += kRowsAtOnce) {
    call.m = std::min(kRowsAtOnce, x.extent(0) - row);
    call.x = x.data<BFloat16>() + row * (apart ? x.stride(0) : w.k);
    if (apart) {
      copy_rows(stream, x.slice(0, row, row + call.m), dense);
      call.x = dense;
    }
    for (const Slab& slab : slabs) {
      if (slab.rows == 0) break;
      call.n = call.w_stride = call.out_stride = slab.rows;
      call.w = w.data + slab.offset;
      onednn_matmul(stream, call);
      stream.team().parallel_for(call.m, std::max<int64_t>(1, 16384 / slab.rows), [&](IndexRange range, int) {
        finish(moved(epilogue, row + range.begin, slab.row), sums + range.begin * slab.rows, slab.rows, range.size(),
               slab.rows);
      });
    }
  }
}

size_t onednn_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int) {
  return static_cast<size_t>(std::min(kRowsAtOnce, rows) * std::min(kSlab, w.n)) * sizeof(float) + row_bytes(w, rows);
}

}  // namespace zoetrope::kernels
