// Packed weights that are not kept: packed from their stored tensors when they are used, each time again, into
// addresses that stay the same. What a WeightStream reads where there is no file of packed weights.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "io/weights/weight_stream.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

class PackOnUse final : public WeightStream::Storage {
 public:
  // Each weight with its place. The places are anonymous memory.
  using Weight = std::pair<PackedWeight, std::byte*>;
  PackOnUse(std::shared_ptr<const WeightSource> source, std::vector<Weight> weights, int threads);

  void read(std::span<const WeightStream::Range> ranges) override;
  void release(const WeightStream::Range& range) override;
  // Pages of files, and buffers.
  size_t reading_bytes(const std::vector<WeightStream::Part>& parts) const override;

 private:
  std::vector<const Weight*> weights_of(const WeightStream::Range& range) const;

  std::shared_ptr<const WeightSource> source_;
  std::map<const std::byte*, Weight> weights_;  // by place
  int threads_;
};

}  // namespace zoetrope::io
