// What a rank computes a second while all ranks compute: figures of a profile that need no link. For calibrate.cpp
// only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zoetrope/tensor.h"

#include "bench/calibrate_rank.h"
#include "machine/layer_work.h"

namespace zoetrope::bench {

using machine::AttentionWork;

using MeasuredCurve = std::vector<std::pair<int64_t, Measured>>;

struct DtypeFigures {
  std::string peak_of, kernel;        // instruction set whose peak it is, implementation of attention
  Measured peak;                      // multiply-adds of it, FLOP/s of a rank
  MeasuredCurve gemm;                 // of the peak, by rows
  MeasuredCurve attention;            // of the peak, online, by queries under kLongKeys keys
  MeasuredCurve attention_keys;       // the same, by keys under kLongKeys queries
  MeasuredCurve tile_rows;            // the same, by rows of a tile, where there are tiles
  MeasuredCurve attention_fixed_max;  // the same with fixed-max softmax, at kLongKeys
  MeasuredCurve convolution;          // of the peak
  Measured token_seconds;             // a layer
  Measured layer_overhead;            // seconds
  double fold_seconds = 0;            // what folding ring blocks adds to attending each of them, a block, row and head
};
inline constexpr int64_t kLongKeys = 2048;

// What is measured now, and what it came to ("bf16.gemm", 256 rows).
struct ComputeNotes {
  std::function<void(const std::string& what)> say;
  std::function<void(const std::string& figure, const std::string& at, const std::string& value, double spread)> found;
};

DtypeFigures measure_dtype(CalibrationRank& rank, const machine::LayerWeights& weights, const ComputeNotes& notes);

// The instruction set that bounds the products and attention of a dtype here.
Isa calibrated_isa(CalibrationRank& rank, DType dtype);

// Of a rank, read and written, all of them at once.
Measured measure_memory(CalibrationRank& rank);

// Who reads so that all cores of a host do: its first rank on all of them, or where that one is bound to fewer, every
// rank on its part.
struct HostReaders {
  int hosts = 1;
  int readers = 1;     // of a host
  int threads = 1;     // of a reader
  bool reads = false;  // this rank; others wait
};
// Bytes of files of one host that become packed matrices a second, of the slowest host. From the page cache.
Measured measure_host_read(CalibrationRank& rank, const HostReaders& readers);

}  // namespace zoetrope::bench
