#include "pipeline/weight_ranks.h"

#include <utility>
#include <vector>

namespace zoetrope::pipeline {
namespace {

class Shards final : public io::WeightShards {
 public:
  explicit Shards(std::unique_ptr<comm::Communicator> ranks) : ranks_(std::move(ranks)) {}

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  void stop() override { ranks_->stop(); }

  void gather(std::span<const Piece> pieces) override {
    std::vector<comm::Segment> sends, receives;
    for (const Piece& piece : pieces) {
      if (piece.owner != rank()) {
        receives.push_back({piece.owner, piece.data, piece.bytes});
        continue;
      }
      // Not all to the same rank first.
      for (int distance = 1; distance < size(); ++distance)
        sends.push_back({(rank() + distance) % size(), piece.data, piece.bytes});
    }
    ranks_->exchange(sends, receives, "weight gather").wait();
  }

 private:
  std::unique_ptr<comm::Communicator> ranks_;
};

}  // namespace

std::unique_ptr<io::WeightShards> weight_shards(std::unique_ptr<comm::Communicator> ranks) {
  return std::make_unique<Shards>(std::move(ranks));
}

}  // namespace zoetrope::pipeline
