// Ranks that keep parts of packed weights for one another.
#pragma once

#include <cstddef>
#include <span>

namespace zoetrope::io {

class WeightShards {
 public:
  virtual ~WeightShards() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  struct Piece {
    int owner;  // whose bytes all others receive
    std::byte* data;
    size_t bytes;
  };
  // Collective, with the same pieces in the same order; one at a time. Throws Error where a rank fails.
  virtual void gather(std::span<const Piece> pieces) = 0;
  // Any thread: gathers throw from now on.
  virtual void stop() = 0;
};

}  // namespace zoetrope::io
