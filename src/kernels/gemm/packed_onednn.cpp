#include "kernels/gemm/packed_onednn.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/index_range.h"
#include "kernels/gemm/pack_pairs.h"
#include "kernels/gemm/stored_rows.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kSlab = 512;         // rows of w
constexpr int64_t kMostRows = 256;     // of x in a piece: its sums with a slab stay in cache for the epilogue
constexpr int64_t kFewestRows = 64;    // fewer do not repay reading the slab
constexpr int64_t kCopiedRows = 1024;  // of a strided x, at a time

// One CPU engine per process: it has no mutable state. Streams belong to the calling thread.
const dnnl::engine& onednn_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}
dnnl::stream& onednn_stream() {
  thread_local dnnl::stream stream(onednn_engine());
  return stream;
}

// Whether oneDNN uses all of `isa` on this machine.
bool onednn_has(dnnl::cpu_isa isa) {
  const auto bits = static_cast<unsigned>(isa);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

// During its lifetime oneDNN works on the calling thread only, also when it creates primitives: threads of OpenMP would
// spin in their barriers for as long as the environment says, and wait for each other's cores. What is worth several
// threads is divided into pieces for the rank's team.
class OneThread {
 public:
  OneThread() : threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
};

// Scratch memory is the caller's: primitives are shared by threads, so they must not own any.
dnnl::primitive_attr onednn_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_fpmath_mode(dnnl::fpmath_mode::strict);
  return attributes;
}

dnnl::memory memory_at(const dnnl::memory::desc& desc, const void* data) {
  return {desc, onednn_engine(), const_cast<void*>(data)};
}

// The layout oneDNN prefers for BF16 weights w [N, K]: the same in every process on a machine, for any number of
// threads.
dnnl::memory::desc packed_desc(int64_t n, int64_t k) {
  constexpr int64_t kRows = 1024;  // a typical number; oneDNN's choice may depend on it
  thread_local std::map<std::array<int64_t, 2>, dnnl::memory::desc> cache;
  const auto found = cache.find({n, k});
  if (found != cache.end()) return found->second;
  using dnnl::memory;
  const OneThread alone;  // the layout must not depend on the caller
  const dnnl::matmul::desc desc(memory::desc({kRows, k}, memory::data_type::bf16, {k, 1}),
                                memory::desc({k, n}, memory::data_type::bf16, memory::format_tag::any),
                                memory::desc({kRows, n}, memory::data_type::f32, {n, 1}));
  const memory::desc weights = dnnl::matmul::primitive_desc(desc, onednn_attributes(), onednn_engine()).weights_desc();
  return cache[{n, k}] = weights;
}

// oneDNN's code for out[M, N] = x[M, K]·w: x BF16 and out F32, both contiguous, w as packed_desc(). Any number of
// threads may run it at the same time.
class Matmul {
 public:
  Matmul(int64_t m, int64_t n, int64_t k) {
    using dnnl::memory;
    const OneThread alone;
    x_ = memory::desc({m, k}, memory::data_type::bf16, {k, 1});
    w_ = packed_desc(n, k);
    out_ = memory::desc({m, n}, memory::data_type::f32, {n, 1});
    const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(x_, w_, out_), onednn_attributes(), onednn_engine());
    scratch_ = chosen.scratchpad_desc();
    matmul_ = dnnl::matmul(chosen);
  }
  size_t scratch_bytes() const { return scratch_.get_size(); }
  // On the calling thread only.
  void run(const void* x, const void* w, float* out, void* scratch) const {
    const OneThread alone;
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory_at(x_, x)}, {DNNL_ARG_WEIGHTS, memory_at(w_, w)}, {DNNL_ARG_DST, memory_at(out_, out)}};
    if (scratch_bytes() > 0) arguments.emplace(DNNL_ARG_SCRATCHPAD, memory_at(scratch_, scratch));
    matmul_.execute(onednn_stream(), arguments);
    onednn_stream().wait();
  }

 private:
  dnnl::matmul matmul_;
  dnnl::memory::desc x_, w_, out_, scratch_;
};

// A cache per thread, so that a multiplication takes no lock. oneDNN's own cache is shared by threads, so ranks do not
// compile the same code twice.
std::shared_ptr<const Matmul> matmul_of(int64_t m, int64_t n, int64_t k) {
  constexpr size_t kMost = 512;
  thread_local std::map<std::array<int64_t, 3>, std::shared_ptr<const Matmul>> cache;
  const auto found = cache.find({m, n, k});
  if (found != cache.end()) return found->second;
  if (cache.size() >= kMost) cache.clear();
  return cache[{m, n, k}] = std::make_shared<const Matmul>(m, n, k);
}

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
    offset += static_cast<int64_t>((packed_desc(rows, matrix.k).get_size() + 63) / 64 * 64);
  }
  slabs.push_back({matrix.n, 0, offset});
  return slabs;
}

void reorder(const dnnl::memory& from, const dnnl::memory& to) {
  const OneThread alone;
  dnnl::memory source = from, target = to;
  dnnl::reorder(source, target).execute(onednn_stream(), source, target);
  onednn_stream().wait();
}

dnnl::memory::desc plain_desc(int64_t n, int64_t k) { return {{k, n}, dnnl::memory::data_type::bf16, {1, k}}; }

// The layout as blocks of pairs, which oneDNN chooses where it has bf16 instructions; else nothing.
std::optional<PairBlocks> pair_blocks(const dnnl::memory::desc& desc) {
  const dnnl_blocking_desc_t& blocks = desc.data.format_desc.blocking;
  const auto inner = [&](int i, int axis) { return blocks.inner_idxs[i] == axis ? blocks.inner_blks[i] : 0; };
  if (desc.data.format_kind != dnnl_blocked || desc.data.offset0 != 0 || blocks.inner_nblks != 3) return {};
  if (inner(0, 0) * inner(2, 0) != kPairTerms || inner(2, 0) != 2 || inner(1, 1) % 16 != 0) return {};
  if (inner(1, 1) == 0) return {};
  return PairBlocks{inner(1, 1), blocks.strides[0], blocks.strides[1]};
}

}  // namespace

bool onednn_has_bf16() { return onednn_has(dnnl::cpu_isa::avx512_core); }

bool onednn_bf16_is_fast() {
  if (onednn_has(dnnl::cpu_isa::avx512_core_amx)) return true;
  return onednn_has(dnnl::cpu_isa::avx512_core_bf16) && __builtin_cpu_is("amd") != 0;
}

// FNV-1a over the layouts' parameters: machines or versions that order elements differently get different names.
std::string onednn_layout_name(const PackedMatrix& matrix) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash = (hash ^ (static_cast<uint64_t>(value) >> (8 * byte) & 0xff)) * 0x100000001b3u;
    }
  };
  for (const Slab& slab : slabs_of(matrix)) {
    if (slab.rows == 0) break;
    const dnnl_memory_desc_t desc = packed_desc(slab.rows, matrix.k).data;
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

// A block of pairs where all slabs consist of them.
int64_t onednn_row_step(const PackedMatrix& matrix) {
  int64_t step = 0;
  for (const Slab& slab : slabs_of(matrix)) {
    if (slab.rows == 0) break;
    const auto blocks = pair_blocks(packed_desc(slab.rows, matrix.k));
    if (!blocks || kSlab % blocks->columns != 0) return kSlab;
    step = std::max(step, blocks->columns);
    if (step % blocks->columns != 0) return kSlab;
  }
  return step == 0 ? kSlab : step;
}

// The step where a block of pairs lies in one piece; else a slab does.
int64_t onednn_part_rows(const PackedMatrix& matrix) {
  for (const Slab& slab : slabs_of(matrix)) {
    if (slab.rows == 0) break;
    const auto blocks = pair_blocks(packed_desc(slab.rows, matrix.k));
    if (!blocks || blocks->column_stride < ceil_div(matrix.k, kPairTerms) * blocks->term_stride) return kSlab;
  }
  return onednn_row_step(matrix);
}

size_t onednn_packed_begin(const PackedMatrix& matrix, int64_t row) {
  const std::vector<Slab> slabs = slabs_of(matrix);
  const Slab& slab = slabs[static_cast<size_t>(row / kSlab)];
  if (row == slab.row) return static_cast<size_t>(slab.offset);
  const auto blocks = pair_blocks(packed_desc(slab.rows, matrix.k));
  ZT_CHECK(blocks.has_value(), "row {} of a slab in one piece", row);
  const int64_t elements = (row - slab.row) / blocks->columns * blocks->column_stride;
  return static_cast<size_t>(slab.offset) + static_cast<size_t>(elements) * sizeof(BFloat16);
}

void onednn_pack(std::span<const TensorView> stored, IndexRange rows, const PackedMatrix& matrix, std::byte* out) {
  const StoredRows source(stored, matrix.k);
  std::vector<BFloat16> rounded;
  for (const Slab& slab : slabs_of(matrix)) {
    const int64_t begin = std::max(rows.begin, slab.row), end = std::min(rows.end, slab.row + slab.rows);
    if (begin >= end) continue;
    const dnnl::memory::desc layout = packed_desc(slab.rows, matrix.k);
    if (const auto blocks = pair_blocks(layout)) {
      auto* const to =
          reinterpret_cast<BFloat16*>(out + slab.offset) + (begin - slab.row) / blocks->columns * blocks->column_stride;
      source.pack(begin - rows.begin, end - begin, *blocks, to);
      continue;
    }
    rounded.resize(static_cast<size_t>(slab.rows * matrix.k));
    source.round(slab.row - rows.begin, slab.rows, rounded.data());
    reorder(memory_at(plain_desc(slab.rows, matrix.k), rounded.data()), memory_at(layout, out + slab.offset));
  }
}

void onednn_unpack(const PackedMatrix& matrix, BFloat16* out) {
  for (const Slab& slab : slabs_of(matrix)) {
    if (slab.rows == 0) break;
    reorder(memory_at(packed_desc(slab.rows, matrix.k), matrix.data + slab.offset),
            memory_at(plain_desc(slab.rows, matrix.k), out + slab.row * matrix.k));
  }
}

namespace {

// Blocks of rows of x. A piece is a block times a slab of w; each thread takes the next one when it is done.
struct Blocks {
  int64_t count, rows;  // rows of every block but the last
};
Blocks blocks_of(const PackedMatrix& w, int64_t rows, int threads) {
  constexpr int64_t kPiecesPerThread = 4;
  const int64_t slabs = ceil_div(w.n, kSlab);
  const int64_t wanted = ceil_div(kPiecesPerThread * threads, slabs);
  const int64_t count = std::clamp(wanted, ceil_div(rows, kMostRows), ceil_div(rows, kFewestRows));
  const int64_t each = round_up(ceil_div(rows, count), 16);
  return {ceil_div(rows, each), each};
}

// The multiplication of contiguous rows of x: full pieces, and those at the end of an axis.
class Pieces {
 public:
  Pieces(Stream& stream, const PackedMatrix& w, int64_t rows)
      : w_(w), rows_(rows), slabs_(slabs_of(w)), blocks_(blocks_of(w, rows, stream.team().size())) {
    for (const bool last_block : {false, true}) {
      for (const bool last_slab : {false, true}) {
        auto& product = products_[last_block ? 1 : 0][last_slab ? 1 : 0];
        product =
            matmul_of(rows_of(last_block ? blocks_.count - 1 : 0), slabs_[last_slab ? slabs_.size() - 2 : 0].rows, w.k);
        scratch_ = std::max(scratch_, round_up(static_cast<int64_t>(product->scratch_bytes()), 64));
      }
    }
    sums_ = blocks_.rows * std::min(kSlab, w.n) * static_cast<int64_t>(sizeof(float));
    memory_ = static_cast<std::byte*>(
        stream.scratch().allocate(static_cast<size_t>((sums_ + scratch_) * stream.team().size())));
  }

  // finish(sums, row, rows, slab) after each piece, on its thread.
  template <typename Finish>
  void run(Stream& stream, const BFloat16* x, Finish&& finish) const {
    std::atomic<int64_t> next = 0;
    const auto slabs = static_cast<int64_t>(slabs_.size()) - 1;
    stream.team().run([&](int thread) {
      std::byte* mine = memory_ + (sums_ + scratch_) * thread;
      auto* sums = reinterpret_cast<float*>(mine);
      // All threads work on one slab at a time, which they read from the shared cache.
      for (int64_t piece = next++; piece < slabs * blocks_.count; piece = next++) {
        const int64_t block = piece % blocks_.count, row = block * blocks_.rows;
        const Slab& slab = slabs_[static_cast<size_t>(piece / blocks_.count)];
        const bool last_slab = slab.row + kSlab >= w_.n;
        const Matmul& product = *products_[block + 1 == blocks_.count ? 1 : 0][last_slab ? 1 : 0];
        product.run(x + row * w_.k, w_.data + slab.offset, sums, mine + sums_);
        finish(sums, row, rows_of(block), slab);
      }
    });
  }

 private:
  int64_t rows_of(int64_t block) const { return std::min(blocks_.rows, rows_ - block * blocks_.rows); }

  const PackedMatrix& w_;
  const int64_t rows_;
  const std::vector<Slab> slabs_;
  const Blocks blocks_;
  std::shared_ptr<const Matmul> products_[2][2];  // [last block][last slab]
  int64_t sums_ = 0, scratch_ = 0;                // bytes per thread
  std::byte* memory_ = nullptr;
};

// oneDNN 2.6 uses its reference, a thousand times slower, for strided rows wherever it has bf16 instructions, and only
// there is this layout chosen: so strided rows are copied first.
size_t row_bytes(const PackedMatrix& w, int64_t rows) {
  return static_cast<size_t>(std::min(kCopiedRows, rows) * w.k) * sizeof(BFloat16);
}
void copy_dense(Stream& stream, const TensorView& x, BFloat16* to) {
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
  const int64_t rows = x.extent(0);
  const bool strided = rows > 1 && x.stride(0) != w.k;
  const int64_t at_once = strided ? std::min(kCopiedRows, rows) : rows;
  for (int64_t first = 0; first < rows; first += at_once) {
    const TensorView part = x.slice(0, first, std::min(rows, first + at_once));
    const Arena::Scope scope(stream.scratch());
    const BFloat16* dense = part.data<BFloat16>();
    if (strided) {
      auto* copy = static_cast<BFloat16*>(stream.scratch().allocate(row_bytes(w, part.extent(0))));
      copy_dense(stream, part, copy);
      dense = copy;
    }
    Pieces(stream, w, part.extent(0))
        .run(stream, dense, [&](float* sums, int64_t row, int64_t count, const Slab& slab) {
          finish(moved(epilogue, first + row, slab.row), sums, slab.rows, count, slab.rows);
        });
  }
}

size_t onednn_packed_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads) {
  if (rows == 0) return 0;  // a rank without tokens
  const Blocks blocks = blocks_of(w, rows, threads);
  const int64_t sums = blocks.rows * std::min(kSlab, w.n) * static_cast<int64_t>(sizeof(float));
  return static_cast<size_t>(sums * threads) + row_bytes(w, rows);
}

}  // namespace zoetrope::kernels
