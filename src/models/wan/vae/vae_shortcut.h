// The shortcuts of the residual VAE's stages (ShortcutLayout), which have no parameters. Upwards, the larger picture is
// never built: the values for one place of all cells are a picture of the smaller size, and the convolution that
// computes those pixels adds it. Downwards, a stage's input is averaged as it arrives, so that only a quarter is
// stored.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_run.h"

namespace zoetrope::wan {

// Around a stage of the decoder. The first frame of a clip becomes the last one of its cell; those before are dropped.
class CopyShortcut {
 public:
  explicit CopyShortcut(const ShortcutLayout& layout);
  void start() { kept_.clear(); }
  void take(const VaeRun& run, const Frame& x);  // the stage's input, which may change afterwards
  // [rows of the input, W, large channels]: for all pixels at this place of their cells.
  TensorView at(int64_t frame, int64_t row, int64_t column) const;

 private:
  ShortcutLayout layout_;
  std::vector<std::vector<int64_t>> sources_;  // for every channel the input's, of each of the different pictures
  std::vector<size_t> picture_of_;             // by place in a cell
  std::vector<Frame> kept_;                    // one a picture
};

// How many pictures of the smaller size a CopyShortcut stores.
int64_t copied_pictures(const ShortcutLayout& layout);

// Around a stage of the encoder. A clip begins with the last frame of a cell, of which the others are zeros.
class MeanShortcut {
 public:
  explicit MeanShortcut(const ShortcutLayout& layout);
  void start();
  void take(const VaeRun& run, const Frame& x);  // the next frame of the stage's input
  Frame finished();  // what is to be added to the stage's output; empty where a cell lacks frames

  // The output's channel of each of the input's.
  struct Targets {
    std::vector<int64_t> channels;
    bool in_order = false;
  };

 private:
  template <typename T>
  void add(ThreadTeam& team, const TensorView& x, bool begins) const;

  ShortcutLayout layout_;
  std::vector<std::vector<Targets>> targets_;  // by frame of the cell and pixel of its picture
  int64_t seen_ = 0;                           // frames of the cell
  Frame sum_;
};

// x += y, both [rows, W, C].
void add_frame(const VaeRun& run, const Frame& x, const Frame& y);

}  // namespace zoetrope::wan
