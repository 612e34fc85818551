// y = x·wᵀ with weights that were packed once, and with an epilogue on the sums while they are in cache: bias,
// activation, or the gated residual of a transformer block. For matrices that are multiplied often; thin_gemm() takes
// weights as checkpoints store them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "kernels/pointwise/pointwise.h"

namespace zoetrope::kernels {

// How w [N, K] is stored. The first two are panels of 16 or 64 rows of w, each [K][columns], so that a step of the
// multiplication reads contiguous memory (int8: packed_int8.h). Columns beyond N are zeros. kTiles is for AMX:
// packed_amx.h.
enum class PackedLayout : uint8_t { kColumns16, kColumns64, kOneDnn, kTiles };

// How terms are rotated before they become int8 (int8_groups.h): by our own matrix, or as a file has its weights: 0:
// not, or ConvRot's group.
inline constexpr int kInt8Hadamard = -1;
bool int8_rotation_possible(int64_t rotation, int64_t k);

struct PackedMatrix {
  const std::byte* data = nullptr;  // 64-byte aligned, packed_bytes() of them
  int64_t n = 0, k = 0;
  DType dtype = DType::kF32;  // F32, BF16, or I8: w and x are quantised as int8_groups.h says
  PackedLayout layout = PackedLayout::kColumns64;
  int rotation = kInt8Hadamard;  // of I8
  explicit operator bool() const { return data != nullptr; }
};

// The fastest layout for weights of this dtype on this CPU, and all that this CPU can multiply.
PackedLayout packed_layout(DType dtype);
std::vector<PackedLayout> packed_layouts(DType dtype);
// "bf16.columns64": equal where packed bytes mean the same, so a part of a cache's key. From n, k, dtype, layout and
// rotation.
std::string packed_layout_name(const PackedMatrix& matrix);

size_t packed_bytes(const PackedMatrix& matrix);  // from n, k, dtype and layout
int64_t panel_columns(PackedLayout layout);       // of those that are panels
// Fills `out` from matrices [n_i, K] stacked along N, contiguous, F32, BF16, F16 or F64, at any alignment; converted
// via float32, to nearest even. On the calling thread.
void pack(std::span<const TensorView> stored, const PackedMatrix& matrix, std::byte* out);
// The same for some rows of w: `stored` are rows [first_row, first_row + their number), `out` is the whole result. Both
// ends are multiples of packed_row_step(), but for the end of w. Other rows may be packed at the same time. `scales` of
// I8, of all rows of w: its values are integers times these, rotated back as `rotation` says, and the integers are what
// is packed; empty: they are rounded to int8, each row with a scale of its own.
void pack_rows(std::span<const TensorView> stored, int64_t first_row, const PackedMatrix& matrix, std::byte* out,
               std::span<const float> scales = {});
int64_t packed_row_step(const PackedMatrix& matrix);
// Rows from one multiple of packed_part_rows() to another are bytes of their own of the result, from packed_begin() of
// the first to packed_begin() of the second; that of N is packed_bytes(). A multiple of packed_row_step().
int64_t packed_part_rows(const PackedMatrix& matrix);
size_t packed_begin(const PackedMatrix& matrix, int64_t row);

// The dtype that x must have: BF16 for I8 weights, F32 also for BF16 weights where BF16 is multiplied in float32.
// Rounding is the caller's: for BF16 operands it writes rounded floats.
DType operand_dtype(const PackedMatrix& w);

struct PackedGemm {
  TensorView x;  // [M, K] of operand_dtype(w), last axis contiguous, rows at any stride
  PackedMatrix w;
  TensorView bias;                            // [N] F32 or BF16, optional
  Activation activation = Activation::kNone;  // not with a residual
  TensorView out;                             // [M, N] F32 or BF16, last axis contiguous, rows at any stride
  bool round_to_bf16 = false;                 // out is F32, but of BF16 values: the operand of the next multiplication
  // out = residual + gate·y: y rounded to out's dtype first, the rest in float32 and rounded once.
  TensorView residual;  // [M, N] of out's dtype, optional; may be out
  TensorView gate;      // [N] F32, optional: 1
  std::string implementation = {};
};
void packed_gemm(Stream& stream, const PackedGemm& args);

// The most scratch memory that packed_gemm() takes from the stream for `rows` rows of x.
size_t packed_gemm_scratch_bytes(const PackedMatrix& w, int64_t rows, int threads);

}  // namespace zoetrope::kernels
