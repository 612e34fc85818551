// One transformer layer on the clocks of all ranks: prices the programs (parallel/program.h) that the engine executes.
// simulator.cpp makes steps and runs of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "parallel/program.h"
#include "planner/simulator.h"
#include "planner/wires.h"

namespace zoetrope::planner {

// What the tensor ranks of a group send one another in a layer: to each of the others so many bytes in all, in so many
// exchanges one after the other, two for each sum.
struct TensorSums {
  int64_t bytes = 0;
  int64_t exchanges = 0;
};
TensorSums tensor_sums(const Work& work, int tensor, int64_t tokens, int64_t batch);

// Rows in whole tiles, relative to `size`; 1 without a tile.
double padding(int64_t size, int64_t tile);

// Seconds of compute on one device.
class Prices {
 public:
  Prices(const Work& work, const HardwareProfile& hardware, const Configuration& configuration);

  // Matrix multiplications over `tokens` of each of `batch` sequences; `flop` is that of all tokens.
  double gemm(double flop, int64_t tokens, int64_t batch) const;
  // Those of a layer, and cross-attention: of the tensor rank with most.
  double layer_gemms(int tensor, int64_t tokens, int64_t batch) const;
  double tokens(int64_t tokens, int64_t batch) const;
  // All queries of `heads` heads with one block of keys, tiles padded.
  double attention(int64_t queries, int64_t keys, int64_t heads, int64_t batch) const;
  double attention_flop(int64_t queries, int64_t keys, int64_t heads, int64_t batch) const;
  // Merging the outputs of `blocks` ring blocks.
  double merge(int64_t queries, int64_t heads, int64_t batch, int blocks) const;
  // Keys and values of so many tokens into what travels, or back, at the speed of memory; 0 where they travel as they
  // are.
  double convert_keys(int64_t tokens, int64_t heads, int64_t batch) const;

 private:
  const Work& work_;
  const HardwareProfile& hardware_;
  const ComputeFigures& compute_;
  int64_t block_q_, block_kv_;
  bool fixed_max_;
};

class LayerWalk {
 public:
  LayerWalk(const Work& work, const HardwareProfile& hardware, const Configuration& configuration, const Routes& routes,
            Timeline timeline);

  // Walks one layer; afterwards all clocks are at seconds().
  void run();

  double seconds() const { return seconds_; }
  const std::vector<Breakdown>& parts() const { return parts_; }
  // Exposed seconds of all ranks, by link level.
  const std::vector<double>& exposed_exchange() const { return exposed_exchange_; }
  const std::vector<double>& exposed_ring() const { return exposed_ring_; }
  const std::vector<double>& exposed_tensor() const { return exposed_tensor_; }
  // Seconds in which a rank's links of a level carried the layer's transfers, hidden or not.
  double link_seconds(int level, int rank) const {
    return link_seconds_[static_cast<size_t>(level) * ranks_ + static_cast<size_t>(rank)];
  }
  // Transfers of attention over a level that had not ended when a rank needed them.
  int64_t exposed_transfers(int level, int rank) const {
    return exposed_transfers_[static_cast<size_t>(level) * ranks_ + static_cast<size_t>(rank)];
  }
  std::vector<TimelineSpan> take_spans() { return std::move(spans_); }

 private:
  using Seconds = std::vector<double>;
  // A transfer of the programs, of all ranks.
  struct Transfer {
    parallel::Transfer::Kind kind{};
    bool on_ring = false;
    std::vector<Flow> flows;
    bool to_all = false;
    std::vector<Routes::Group> groups;  // instead of flows, where all send to all
    std::vector<int64_t> received;      // then, by rank
    std::vector<Arrival> arrivals;      // by rank, from Post to Wait
    double Breakdown::*part() const { return on_ring ? &Breakdown::exposed_ring : &Breakdown::exposed_exchange; }
  };
  struct Keys {  // that a rank folds
    int rank = 0;
    int64_t tokens = 0;
  };

  void read_programs();
  // The program of a context rank, for the devices of one data and one tensor coordinate, the first of which is
  // `first`.
  void read(const parallel::AttentionProgram& program, int rank, int first);
  // Of a device.
  int context_rank(size_t device) const { return static_cast<int>(device) / tensor_ % topology_.ranks(); }
  int64_t tokens_of(size_t device) const;
  int64_t heads_of(size_t device, int chunk) const;
  bool computes_before_wait(size_t post) const;

  void before_attention();
  void sum_over_tensor_ranks();
  void attention();
  // Each for all ranks, on the clocks in now_.
  void post(Transfer& transfer, bool during_compute);
  void wait(Transfer& transfer);
  void narrow();
  void fold(int chunk, const std::vector<Keys>& keys);
  void finish(int chunk);
  void compute(size_t rank, const char* name, double seconds, double Breakdown::*part, double flop = 0);

  const Work& work_;
  const HardwareProfile& hardware_;
  const Configuration& configuration_;
  Prices prices_;
  Wires wires_;
  bool records_;
  parallel::ContextLayout topology_;  // one rank where every rank computes all tokens
  int tensor_;
  parallel::Sizes sizes_;  // of one data and one tensor coordinate
  size_t ranks_;
  std::vector<parallel::Op> ops_;  // the same of all ranks
  std::vector<Transfer> transfers_;
  std::vector<std::vector<Keys>> folds_;
  bool narrows_ = false;          // keys and values travel in fewer bits
  std::vector<int64_t> queries_;  // of each rank
  Seconds now_;
  Seconds exchange_slowdown_, ring_slowdown_;  // of the next block, from communication
  double seconds_ = 0;
  std::vector<Breakdown> parts_;
  Seconds exposed_exchange_, exposed_ring_, exposed_tensor_;
  Seconds link_seconds_;                    // [level, rank]
  std::vector<int64_t> exposed_transfers_;  // [level, rank]
  std::vector<TimelineSpan> spans_;
};

}  // namespace zoetrope::planner
