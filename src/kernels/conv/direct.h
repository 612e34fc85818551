// The interface between the direct convolution and its inner loops, a file per instruction set. No code here, and no
// library headers with code: what those files instantiate must not be linked into others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace zoetrope::kernels {

constexpr int64_t kMostRuns = 24;

// A register tile: acc[p][n] (+)= Σ over runs r and k of run_r[p·pixel_stride + k]·weights[r][k][n]. A run is the input
// of one row of the kernel for one pixel, contiguous because channels are innermost and columns next.
struct TileCall {
  const void* runs[kMostRuns];  // of the first pixel
  int64_t run_count;
  int64_t run_length;    // elements
  int64_t pixel_stride;  // elements
  const void* weights;   // one block of output channels, of the first run
  float* acc;
  int64_t acc_stride;  // floats per pixel
  bool accumulate;     // onto acc

  // For tiles of several rows, whose runs are single rows of input: [frame][rows of the kernel + row_stride].
  int64_t frames, channels;
  std::array<int64_t, 2> kernel;
  int64_t column_stride;           // elements between columns of inputs
  int64_t row_stride;              // runs between two rows of output
  int64_t acc_row;                 // floats between them
  void (*overlapped)(void* work);  // called once per column of taps: work for the rest of the core
  void* overlapped_work;
};

// Finishes one row of sums and stores it. Pointers are to the first pixel, strides in elements per pixel.
struct FinishCall {
  float* acc;  // [pixels][channels rounded up to vectors]; overwritten
  int64_t acc_stride;
  int64_t pixels;
  int64_t channels;
  const float* bias;   // padded with zeros to a whole vector
  const float* gamma;  // the same
  float root;          // √channels
  bool silu;
  const void* add;  // nullptr: none
  int64_t add_stride;
  void* raw;  // nullptr: none
  int64_t raw_stride;
  void* normed;  // nullptr: none
  int64_t normed_stride;
};

// Winograd's F(2×2, 3×3) for strips of tiles. A tile is 2×2 outputs of 3×3 taps, computed from 4×4 inputs: the inputs
// and the taps are transformed to 16 points, at each of which one product stands for the 9 × 4 / 16 of the definition.
struct WinogradWeightCall {
  const void* taps;  // [9][columns] of an input channel in a frame
  int64_t columns;   // whole vectors
  float* points;     // [16][columns]
  int64_t point_stride;
};
struct WinogradInputCall {
  const void* rows[4];   // of inputs, at the first column of the first tile
  int64_t pixel_stride;  // elements
  int64_t channels;
  int64_t tiles;
  bool last_column;                   // the last tile's fourth column exists
  void* out;                          // [point][tile][channel]
  int64_t tile_stride, point_stride;  // elements
};
struct WinogradOutputCall {
  const float* sums;  // [point][tile][channel]
  int64_t tile_stride, point_stride;
  int64_t channels;  // whole vectors
  int64_t tiles;
  float* rows[2];  // of outputs, [two per tile][channel]; nullptr: not wanted
  int64_t pixel_stride;
};
constexpr int64_t kWinogradPoints = 16;

using TileFunction = void (*)(const TileCall&);

struct DirectKernels {
  static constexpr int kMostPixels = 8;
  static constexpr int kMostVectors = 3;
  int rows = 1;                                  // of outputs in a tile
  int depth = 1;                                 // input channels are padded to a multiple of it
  int lanes;                                     // floats in a vector
  int pixels;                                    // of the largest tile
  int vectors;                                   // of output channels in the largest tile
  int pair;                                      // values that one product sums: 1 float, or 2 bf16
  TileFunction tile[kMostPixels][kMostVectors];  // [pixels − 1][vectors − 1]
  // For few output channels: lanes run over the inputs, weights are [run][channel][k]. [pixels − 1]; float only.
  TileFunction narrow[kMostPixels];
  void (*finish_f32)(const FinishCall&);
  void (*finish_bf16)(const FinishCall&);
  // By Winograd, all nullptr without it. Inputs and weights by their dtype; products of bf16 pairs take bf16 only, and
  // weights that were transformed when they were packed.
  void (*winograd_input_f32)(const WinogradInputCall&) = nullptr;
  void (*winograd_input_bf16)(const WinogradInputCall&) = nullptr;
  void (*winograd_weights_f32)(const WinogradWeightCall&) = nullptr;
  void (*winograd_weights_bf16)(const WinogradWeightCall&) = nullptr;
  void (*winograd_output)(const WinogradOutputCall&) = nullptr;
  void (*widen)(const void* from, float* to, int64_t count);  // bf16 to float

  // With AMX, whose tiles have all their rows and pixels: runs work(argument) on this thread with the tiles configured.
  // nullptr: no AMX, and tiles have every size.
  void (*with_amx)(void (*work)(void*), void* argument) = nullptr;
};
constexpr int64_t kNarrowChannels = 3;  // of the narrow tiles

const DirectKernels& direct_avx2();
const DirectKernels& direct_avx512();
const DirectKernels& direct_avx512_bf16();
const DirectKernels& direct_amx();

}  // namespace zoetrope::kernels
