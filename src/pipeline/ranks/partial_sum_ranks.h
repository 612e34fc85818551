// The sum over ranks that a text encoder or a transformer is handed: each rank adds up a share of the rows, in rank
// order, and the shares are passed round, so that every rank has the same bits.
#pragma once

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

#include "models/encoders/partial_sum.h"

namespace zoetrope::pipeline {

class PartialSumRanks final : public encoders::PartialSum {
 public:
  // What its messages are called in traces, in errors and by tests that spoil them. Literals.
  struct Operations {
    const char *shares, *sums;
  };
  static constexpr Operations kTextEncoder{"text encoder: shares of a sum", "text encoder: sums"};
  static constexpr Operations kTransformer{"tensor parallel: shares of a sum", "tensor parallel: sums"};

  // Part r belongs to rank r of `ranks`, which must outlive this.
  PartialSumRanks(comm::Communicator& ranks, const Operations& operations) : ranks_(ranks), operations_(operations) {}

  int parts() const override { return ranks_.size(); }
  int part() const override { return ranks_.rank(); }
  // Each sends (P − 1)/P of the bytes, and waits for the slowest rank: as often as a layer adds up, so that one wait is
  // a part of a layer's work at most, however long the whole takes.
  IndexRange add_up_rows(Stream& stream, const TensorView& values) override;
  void gather_rows(const TensorView& rows) override;

 private:
  comm::Communicator& ranks_;
  Operations operations_;
  Tensor received_;  // [P − 1][values of this rank's share]; kept between calls
};

}  // namespace zoetrope::pipeline
