// Packed weights of which each rank keeps a part of every matrix, and gathers the parts of others when a matrix is
// used, each time again, into addresses that stay the same. What a WeightStream reads where weights are shared by
// ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/index_range.h"
#include "io/weights/weight_shards.h"
#include "io/weights/weight_stream.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

class GatherOnUse final : public WeightStream::Storage {
 public:
  struct Weight {
    std::byte* place;                         // of the whole, in anonymous memory
    std::vector<WeightShards::Piece> pieces;  // of all ranks, in the order of memory; they leave no gap
    IndexRange own_rows{0, 0};                // that this rank keeps
    size_t own_begin = 0, own_bytes = 0;      // their bytes of the whole
    std::byte* own = nullptr;                 // where they are kept
  };
  // How the `number`-th weight is divided: what does not divide evenly is spread over the ranks. A weight whose rows do
  // not lie side by side is one rank's. Sets all but `own`.
  static Weight divide(const PackedWeight& weight, size_t number, std::byte* place, const WeightShards& shards);

  // `own` are packed.
  GatherOnUse(std::shared_ptr<WeightShards> shards, std::vector<Weight> weights);

  void read(std::span<const WeightStream::Range> ranges) override;
  void release(const WeightStream::Range& range) override { release_whole_pages(range); }
  bool collective() const override { return true; }
  void stop() override { shards_->stop(); }

 private:
  std::shared_ptr<WeightShards> shards_;
  std::map<const std::byte*, Weight> weights_;  // by place
};

}  // namespace zoetrope::io
