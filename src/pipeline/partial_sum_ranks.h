// The sum over ranks that a text encoder is handed: each rank adds up a share of the values, in rank order, and the
// shares are passed round, so that every rank has the same bits.
#pragma once

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

#include "models/encoders/partial_sum.h"

namespace zoetrope::pipeline {

class PartialSumRanks final : public encoders::PartialSum {
 public:
  // Part r belongs to rank r of `world`, which must outlive this.
  explicit PartialSumRanks(comm::Communicator& world) : world_(world) {}

  int parts() const override { return world_.size(); }
  int part() const override { return world_.rank(); }
  // Sends 2·(P − 1)/P of the values. Waits for the slowest rank: twice a layer, so that one wait is half a layer's work
  // and reading at most, however long the whole takes.
  void add_up(const TensorView& values) override;

  // Names of its messages, in traces, in errors and for tests that spoil them.
  static constexpr const char* kSharesOperation = "text encoder: shares of a sum";
  static constexpr const char* kSumsOperation = "text encoder: sums";

 private:
  comm::Communicator& world_;
  Tensor received_;  // [P − 1][values of this rank's share]; kept between calls
};

}  // namespace zoetrope::pipeline
