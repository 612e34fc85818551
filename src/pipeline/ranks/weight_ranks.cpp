#include "pipeline/ranks/weight_ranks.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "planner/weight_wait.h"

namespace zoetrope::pipeline {
namespace {

// Of a rank's bytes, pieces of this size are under way, this many at once. Fewer bytes halved what exchanges waited
// (1 Gbit/s, two busy cores) but left the link idle for the time gained.
constexpr size_t kAtOnce = size_t{1} << 20;
constexpr size_t kUnderWay = planner::kWeightsUnderWay / kAtOnce;

class Shards final : public io::WeightShards {
 public:
  // What attention sends is waited for soon, weights only when the block before them has been computed.
  explicit Shards(std::unique_ptr<comm::Communicator> ranks) : ranks_(std::move(ranks)) { ranks_->set_background(); }

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  void stop() override { ranks_->stop(); }

  void gather(std::span<const Piece> pieces) override {
    std::vector<std::vector<comm::Segment>> of(static_cast<size_t>(size()));  // by owner
    for (const Piece& piece : pieces) {
      auto& segments = of[static_cast<size_t>(piece.owner)];
      for (size_t at = 0; at < piece.bytes; at += kAtOnce)
        segments.push_back({piece.owner, piece.data + at, std::min(kAtOnce, piece.bytes - at)});
    }
    std::deque<comm::Work> under_way;
    for (size_t round = 0;; ++round) {
      std::vector<comm::Segment> sends, receives;
      for (const std::vector<comm::Segment>& segments : of) {
        if (round >= segments.size()) continue;
        comm::Segment segment = segments[round];
        if (segment.peer != rank()) {
          receives.push_back(segment);
          continue;
        }
        // Not all to the same rank first.
        for (int distance = 1; distance < size(); ++distance) {
          segment.peer = (rank() + distance) % size();
          sends.push_back(segment);
        }
      }
      const bool any = !sends.empty() || !receives.empty();
      if (any) under_way.push_back(ranks_->exchange(sends, receives, "weight gather"));
      while (under_way.size() >= (any ? kUnderWay : 1)) {
        under_way.front().wait();
        under_way.pop_front();
      }
      if (!any) return;
    }
  }

 private:
  std::unique_ptr<comm::Communicator> ranks_;
};

}  // namespace

std::unique_ptr<io::WeightShards> weight_shards(std::unique_ptr<comm::Communicator> ranks) {
  return std::make_unique<Shards>(std::move(ranks));
}

}  // namespace zoetrope::pipeline
