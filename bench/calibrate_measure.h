// What calibrate.cpp measures: compute (calibrate_compute.cpp), links (calibrate_links.cpp), and the check of the
// profile against a run (calibrate_check.cpp). Everything is collective over all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "zoetrope/tensor.h"

#include "bench/calibrate.h"
#include "bench/calibrate_rank.h"
#include "machine/layer_work.h"

namespace zoetrope::bench {

using machine::AttentionWork;

// ---- compute, per rank while all ranks compute ----------------------------------------------------------------------

using MeasuredCurve = std::vector<std::pair<int64_t, Measured>>;

struct DtypeFigures {
  std::string peak_of, kernel;        // instruction set whose peak it is, implementation of attention
  Measured peak;                      // multiply-adds of it, FLOP/s per rank
  MeasuredCurve gemm;                 // of the peak, by rows
  MeasuredCurve gemm_int8;            // the same in int8, at the most rows; empty for float32
  MeasuredCurve attention;            // of the peak, online, by queries with kLongKeys keys
  MeasuredCurve attention_keys;       // the same, by keys with kLongKeys queries
  MeasuredCurve tile_rows;            // the same, by rows of a tile, where there are tiles
  MeasuredCurve attention_fixed_max;  // the same with fixed-max softmax, at kLongKeys
  MeasuredCurve attention_int8;       // and in int8; empty where a host has no such kernel
  MeasuredCurve convolution;          // of the peak
  Measured token_seconds;             // per layer
  Measured layer_overhead;            // seconds
  double fold_seconds = 0;            // cost of folding a ring block compared with attending it, per row and head
};
inline constexpr int64_t kLongKeys = 2048;

// Called with what is being measured, and with each result ("bf16.gemm", 256 rows).
struct ComputeNotes {
  std::function<void(const std::string& what)> say;
  std::function<void(const std::string& figure, const std::string& at, const std::string& value, double spread)> found;
};

// `int8`: the same weights in int8, null where they are not measured.
DtypeFigures measure_dtype(CalibrationRank& rank, const machine::LayerWeights& weights,
                           const machine::LayerWeights* int8, const ComputeNotes& notes);

// The instruction set that limits matrix multiplication and attention of a dtype on this machine.
Isa calibrated_isa(CalibrationRank& rank, DType dtype);

// Bytes per second of a rank, read and written, all ranks at once.
Measured measure_memory(CalibrationRank& rank);

// Who reads so that all cores of a host do: its first rank on all of them, or where ranks are bound to fewer cores,
// every rank on its part.
struct HostReaders {
  int hosts = 1;
  int readers = 1;     // per host
  int threads = 1;     // per reader
  bool reads = false;  // this rank; others wait
};
// Bytes per second of files that become packed matrices, of the slowest host. From the page cache.
Measured measure_host_read(CalibrationRank& rank, const HostReaders& readers);

// ---- links: what ranks send to each other while all of them send ----------------------------------------------------

// Hosts with equal numbers of consecutive ranks.
struct HostLayout {
  int hosts = 1, ranks_per_host = 1;
  int host = 0, local = 0;  // of this rank
};

// By host name. Throws Error, on every rank, where hosts have different numbers of ranks or ranks of a host are not
// consecutive: a profile's devices are both.
HostLayout find_hosts(comm::Communicator& world);

struct LinkFigures {
  Measured bandwidth;  // bytes/s: between hosts one way of a host's port, within one of all its ranks together
  Measured one_way;    // the same, with nothing the other way; within a host one rank alone
  Measured one_rank;   // between hosts: one rank of each alone
  Measured latency;    // seconds per message
  Measured overlap;    // fraction of a transfer that costs the ranks no compute
  bool full_duplex = true;
  int64_t bytes = 0;  // per message of a rank
};

// Every host measures the same at the same time. `work` is computed during a transfer; null: nothing can be, because
// receivers copy when they post or wait (ranks are threads).
LinkFigures measure_within_host(CalibrationRank& rank, const HostLayout& layout, AttentionWork* work);
LinkFigures measure_between_hosts(CalibrationRank& rank, const HostLayout& layout, AttentionWork& work);

// ---- the check: one layer's attention over all ranks, as the simulator predicts it and as measured ------------------

// `profile` on rank 0, which gets the result; null elsewhere. `peak`: multiply-adds per second of a rank when the
// profile was measured.
std::vector<SelfCheck> check_profile(CalibrationRank& rank, const planner::HardwareProfile* profile, DType dtype,
                                     double peak);

}  // namespace zoetrope::bench
