// Processes of one host that keep one copy of packed weights, of which each packs a share.
#pragma once

#include <cstddef>
#include <memory>

#include "io/weights/weight_buffer.h"

namespace zoetrope::io {

// Every function but rank() and size() is collective over these processes.
class HostSharing {
 public:
  virtual ~HostSharing() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Zeroed memory that all of them see; null, for all, where one of them cannot have it.
  virtual std::unique_ptr<WeightBuffer> allocate(size_t bytes) = 0;
  virtual bool all(bool mine) = 0;  // whether it is so in every process
  virtual void barrier() = 0;
};

}  // namespace zoetrope::io
