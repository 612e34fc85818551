// What each instruction set implements for packed_gemm(): the multiplication of one panel, and the epilogue. For
// gemm/packed*.cpp only.
#pragma once

#include <cstdint>

#include "kernels/pointwise/pointwise.h"
#include "kernels/simd.h"

namespace zoetrope::kernels {

// Everything after the sums; pointers are to the first row and column.
struct Epilogue {
  const float* bias = nullptr;  // optional
  Activation activation = Activation::kNone;
  void* out = nullptr;
  int64_t out_stride = 0;
  DType out_dtype = DType::kF32;
  bool round_to_bf16 = false;
  const void* residual = nullptr;  // optional, of out's dtype
  int64_t residual_stride = 0;
  const float* gate = nullptr;  // optional: 1
};

inline namespace ZOETROPE_SIMD {
inline Epilogue moved(const Epilogue& from, int64_t rows, int64_t columns) {
  const int64_t bytes = from.out_dtype == DType::kBF16 ? 2 : 4;
  Epilogue e = from;
  if (e.bias != nullptr) e.bias += columns;
  if (e.gate != nullptr) e.gate += columns;
  e.out = static_cast<char*>(e.out) + (rows * e.out_stride + columns) * bytes;
  if (e.residual != nullptr)
    e.residual = static_cast<const char*>(e.residual) + (rows * e.residual_stride + columns) * bytes;
  return e;
}
}  // namespace ZOETROPE_SIMD

constexpr int kTileRows = 6;  // of x; their sums stay in registers: see packed_tile.h

// Some rows of x times a step of a panel: `depth` terms, the first of which the pointers are to.
struct PanelWork {
  const float* x = nullptr;
  int64_t x_stride = 0;
  int64_t rows = 0;
  const void* panel = nullptr;  // [depth][columns] F32 or BF16
  DType dtype = DType::kF32;
  int64_t depth = 0;
  int64_t columns = 0;             // of the panel without its padding
  float* widened = nullptr;        // [depth][columns of a panel], where dtype is BF16
  float* sums = nullptr;           // [rows][columns of a panel], where K takes several steps
  bool first = true, last = true;  // of the steps
  Epilogue epilogue;
};

// An item of work is a block of rows times some panels: step by step of the depth, in a step panel by panel.
struct PackedKernel {
  int64_t columns;      // of a panel
  int64_t depth;        // of a step, at most
  int64_t rows;         // of an item, at most
  int64_t fewest_rows;  // fewer do not repay the widening of a panel
  int64_t panels;       // of an item, at most
  void (*panel)(const PanelWork&);
  // sums [rows, columns], `sums_stride` floats from row to row.
  void (*finish)(const Epilogue&, const float* sums, int64_t sums_stride, int64_t rows, int64_t columns);
};
// These run none of the kernel's code.
const PackedKernel& packed_kernel_avx2();
const PackedKernel& packed_kernel_avx512();

}  // namespace zoetrope::kernels
