#include "io/weights/gather_on_use.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace zoetrope::io {
namespace {

class NamedRank final : public WeightShards {
 public:
  NamedRank(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void gather(std::span<const Piece>) override {}
  void stop() override {}

 private:
  int rank_, size_;
};

constexpr int64_t kStep = 8;
constexpr size_t kStepBytes = 100;

PackedWeight weight_of(int64_t rows) {
  PackedWeight weight;
  weight.names = {"a", "b"};
  weight.shapes = {{rows - 3, 5}, {3, 5}};
  weight.bytes = static_cast<size_t>((rows + kStep - 1) / kStep) * kStepBytes;
  weight.row_step = weight.part_rows = kStep;
  weight.begin = [](int64_t row) { return static_cast<size_t>(row / kStep) * kStepBytes; };
  return weight;
}

// Every rank has the same pieces, which are all bytes; of each, one rank has the rows.
TEST(GatherOnUse, EveryRowBelongsToOneRank) {
  std::vector<std::byte> memory(100'000);
  for (const int64_t rows : {4, 8, 9, 24, 150}) {
    const PackedWeight weight = weight_of(rows);
    for (int size = 1; size <= 7; ++size) {
      for (size_t number = 0; number < 9; ++number) {
        int64_t own = 0;
        for (int rank = 0; rank < size; ++rank) {
          const auto divided = GatherOnUse::divide(weight, number, memory.data(), NamedRank(rank, size));
          own += divided.own_rows.size();
          std::byte* at = memory.data();
          for (const WeightShards::Piece& piece : divided.pieces) {
            EXPECT_EQ(piece.data, at);
            EXPECT_GT(piece.bytes, 0u);
            at += piece.bytes;
            if (piece.owner != rank) continue;
            EXPECT_EQ(piece.data, memory.data() + divided.own_begin);
            EXPECT_EQ(piece.bytes, divided.own_bytes);
          }
          EXPECT_EQ(at, memory.data() + weight.bytes);
        }
        EXPECT_EQ(own, rows);
      }
    }
  }
}

// 3 pieces over 2 ranks: neither has the larger part of all.
TEST(GatherOnUse, WhatDoesNotDivideIsSpread) {
  std::vector<std::byte> memory(1000);
  std::map<int, size_t> bytes;
  for (size_t number = 0; number < 10; ++number) {
    for (const auto& piece : GatherOnUse::divide(weight_of(3 * kStep), number, memory.data(), NamedRank(0, 2)).pieces)
      bytes[piece.owner] += piece.bytes;
  }
  EXPECT_EQ(bytes[0], bytes[1]);
}

TEST(GatherOnUse, RowsThatDoNotLieSideBySideStayTogether) {
  std::vector<std::byte> memory(1000);
  PackedWeight weight = weight_of(3 * kStep);
  weight.part_rows = 0;
  weight.begin = {};
  int64_t own = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const auto divided = GatherOnUse::divide(weight, 4, memory.data(), NamedRank(rank, 3));
    ASSERT_EQ(divided.pieces.size(), 1u);
    EXPECT_EQ(divided.pieces[0].bytes, weight.bytes);
    EXPECT_EQ(divided.own_rows.size(), divided.pieces[0].owner == rank ? 3 * kStep : 0);
    own += divided.own_rows.size();
  }
  EXPECT_EQ(own, 3 * kStep);
}

}  // namespace
}  // namespace zoetrope::io
