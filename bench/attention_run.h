// One context-parallel attention, timed together with the machine's peak: the common part of `zoetrope attention` and
// `bench attention`, on every rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "bench/attention_data.h"
#include "bench/peak.h"
#include "device/stream.h"

namespace zoetrope::bench {

// The same on every rank.
struct AttentionMeasurement {
  attention::Problem problem;  // scale filled in
  parallel::ContextLayout layout;
  attention::Softmax softmax = attention::Softmax::kOnline;
  std::string implementation;
  double flop = 0;  // of one run, all ranks

  // One number per repeat; the mean where short runs are repeated within a repeat.
  std::vector<double> seconds;       // of the slowest rank
  std::vector<double> peak_flops;    // of all threads of all ranks together: mean of the windows before and after
  std::vector<double> wait_seconds;  // of one run, of the rank that waited longest

  // Of one run, summed over ranks.
  int64_t bytes_sent = 0, bytes_copied = 0, tiles_fixed = 0, tiles_online = 0, heads_int8 = 0, heads_as_computed = 0;
  double key_rounding = 0, value_rounding = 0, int8_error = 0;  // of the rank with the most
};

// One rank's part. All methods are collective.
class AttentionRank {
 public:
  // `o` [B, Sq, H, D] is the whole output; the rank writes its own tokens, and likewise those of
  // log_sum_exp [B, Sq, H] where it is given. All arguments must outlive this.
  AttentionRank(comm::Communicator& world, Stream& stream, const AttentionData& data, const TensorView& o,
                const attention::Strategy& strategy, float scale = 0, const TensorView& log_sum_exp = {});

  void run(const char* span = "attention");
  const parallel::ContextLayout& layout() const { return attention_.layout(); }

  // Warms up, then times `repeats`, each between two windows in which the peak is measured for as long. With
  // `single_runs` every repeat is one run, however short. `at_repeat` is called before each, and may throw.
  AttentionMeasurement time(int64_t repeats, bool single_runs = false, const std::function<void()>& at_repeat = {});

 private:
  std::string common_kernel();
  double peak_window(Isa isa, double seconds);
  void repeat(int64_t runs, const char* span, AttentionMeasurement& result);

  comm::Communicator& world_;
  Stream& stream_;
  const AttentionData& data_;
  TensorView o_, log_sum_exp_;
  attention::ContextAttention attention_;
  IndexRange own_, own_keys_;  // tokens
};

attention::Problem problem_of(const AttentionData& data, float scale = 0);

// Gathers the tokens of all ranks in rank 0's o [B, S, …], contiguous. Collective.
void gather_output(const TensorView& o, const parallel::ContextLayout& layout, comm::Communicator& world);

}  // namespace zoetrope::bench
