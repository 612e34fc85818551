// Low and high frequencies of frames, for the unconditional branch that the CFG cache derives from the conditional one:
//   v_u ≈ irfft2(rfft2(v_c) + (low·L + high·(1 − L))·rfft2(v_u′ − v_c′)),  L the low quarter of the frequencies,
// over height and width of each frame. Fourier transforms are linear and L is the same at f and −f, so that is
//   v_c + high·D + (low − high)·P_h D P_w,  D = v_u′ − v_c′,
// with real matrices P [n, n] that keep the low frequencies of a row or column: two small products instead of three
// transforms, and any size is as good as another. Sums are float64.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace zoetrope::sampling {

// Element i of row 0 of P, of which every row is the one above moved on by one: the sum of cos(2π·k·i/size)/size over
// |k| < cutoff.
std::vector<double> low_pass_row(int64_t size, int64_t cutoff);

class FrequencyFilter {
 public:
  FrequencyFilter(int64_t height, int64_t width);  // of a frame

  // out = high·D + (low − high)·P_h D P_w, D = unconditional − conditional; all one frame [height, width], row-major.
  // `scratch` has scratch_size() values. out may be one of the inputs.
  void weigh(std::span<const float> conditional, std::span<const float> unconditional, double low, double high,
             std::span<double> scratch, std::span<float> out) const;
  size_t scratch_size() const { return static_cast<size_t>(2 * height_ * width_ + width_); }

 private:
  int64_t height_, width_;
  std::vector<double> rows_, columns_;  // row 0 of P_h, P_w, twice after itself: row i begins at size − i
};

}  // namespace zoetrope::sampling
