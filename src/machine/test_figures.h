// For tests: figures of an imaginary machine.
#pragma once

#include "machine/figures.h"

namespace zoetrope::machine {

// All of them `speed` times as fast as those of speed 1.
inline Figures test_figures(double speed) {
  Figures figures;
  figures.bf16 = {0.5e12 * speed, 0.4e12 * speed, 1024, 1.7, 0.35e12 * speed, 2048, 1.04, 1.6, 0.42e12 * speed};
  figures.float32 = {0.25e12 * speed, 0.22e12 * speed, 1024, 1, 0.2e12 * speed, 2048, 0.96, 1, 0.21e12 * speed};
  figures.copy = 20e9 * speed;
  figures.host_read = 3e9 * speed;
  figures.token_seconds = 4e-6 / speed;
  figures.layer_overhead = 2e-5 / speed;
  figures.core_share = 1;
  return figures;
}

}  // namespace zoetrope::machine
