#include "pipeline/ranks/halo_ranks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "base/index_range.h"

namespace zoetrope::pipeline {
namespace {

constexpr int kRanks[] = {1, 2, 3, 4, 7};

// A value that names its origin: exact in bf16's and float32's bytes alike.
template <typename T>
void fill(const TensorView& view, int64_t origin) {
  for (int64_t i = 0; i < view.size(); ++i) view.data<T>()[i] = static_cast<T>(origin * 64 + i % 64);
}

template <typename T>
int64_t wrong(const TensorView& view, int64_t origin) {
  int64_t count = 0;
  for (int64_t i = 0; i < view.size(); ++i) count += view.data<T>()[i] != static_cast<T>(origin * 64 + i % 64);
  return count;
}

template <typename T>
void check_exchange(comm::Communicator& ranks, DType dtype) {
  HaloRanks halo(ranks);
  const int rank = ranks.rank(), last_rank = ranks.size() - 1;
  for (const int64_t width : {1, 5, 64}) {
    const Shape row{width, 3};
    Tensor first(dtype, row), last(dtype, row), above(dtype, row), below(dtype, row);
    fill<T>(first, 2 * rank), fill<T>(last, 2 * rank + 1), fill<T>(above, 100), fill<T>(below, 101);
    halo.exchange(first, last, above, below);
    EXPECT_EQ(wrong<T>(above, rank > 0 ? 2 * (rank - 1) + 1 : 100), 0) << rank;
    EXPECT_EQ(wrong<T>(below, rank < last_rank ? 2 * (rank + 1) : 101), 0) << rank;
    EXPECT_EQ(wrong<T>(first, 2 * rank) + wrong<T>(last, 2 * rank + 1), 0);
  }
}

TEST(HaloRanks, NeighboursGetTheRowsAtTheirBorderAndThePictureHasNone) {
  for (const int n : kRanks) {
    comm::run_ranks(n, [](comm::Communicator& ranks) {
      check_exchange<float>(ranks, DType::kF32);
      check_exchange<uint16_t>(ranks, DType::kBF16);
    });
  }
}

TEST(HaloRanks, APartOfOneRowSendsItBothWays) {
  comm::run_ranks(3, [](comm::Communicator& ranks) {
    HaloRanks halo(ranks);
    Tensor row(DType::kF32, {8, 2}), above(DType::kF32, {8, 2}), below(DType::kF32, {8, 2});
    fill<float>(row, ranks.rank());
    halo.exchange(row, row, above, below);
    EXPECT_EQ(ranks.rank() == 0 ? 0 : wrong<float>(above, ranks.rank() - 1), 0);
    EXPECT_EQ(ranks.rank() == 2 ? 0 : wrong<float>(below, ranks.rank() + 1), 0);
  });
}

TEST(HaloRanks, EveryRankGathersAllRows) {
  for (const int n : kRanks) {
    for (const int64_t rows : {7, 10, 23}) {
      for (const int64_t scale : {1, 2}) {
        comm::run_ranks(n, [&](comm::Communicator& ranks) {
          HaloRanks halo(ranks);
          const IndexRange part = rows_of_part(rows, n, ranks.rank());
          const IndexRange own{part.begin * scale, part.end * scale};
          Tensor mine(DType::kF32, {own.size(), 3, 2}), all(DType::kF32, {rows * scale, 3, 2});
          for (int64_t r = 0; r < own.size(); ++r) fill<float>(mine.view().select(0, r), own.begin + r);
          halo.gather_rows(mine, own, all);
          for (int64_t r = 0; r < rows * scale; ++r) EXPECT_EQ(wrong<float>(all.view().select(0, r), r), 0) << r;
        });
      }
    }
  }
}

TEST(HaloRanks, PartsCoverTheRowsEvenlyAndNoneIsEmpty) {
  for (int64_t rows = 1; rows <= 40; ++rows) {
    for (int parts = 1; parts <= rows; ++parts) {
      int64_t next = 0;
      for (int part = 0; part < parts; ++part) {
        const IndexRange range = rows_of_part(rows, parts, part);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), rows / parts);
        EXPECT_LE(range.size(), ceil_div(rows, parts));
        next = range.end;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(FrameGather, FramesComeTogetherWhileOtherRowsTravel) {
  constexpr int64_t kRows = 9, kScale = 2, kWidth = 5, kFrames = 4;
  for (const int n : kRanks) {
    comm::run_ranks(n, [&](comm::Communicator& ranks) {
      Stream stream(1);
      HaloRanks halo(ranks);
      const IndexRange own = rows_of_part(kRows, n, ranks.rank());
      std::vector<Tensor> wholes;
      FrameGather gather(ranks, kRows, kScale);
      Tensor mine(DType::kF32, {kScale * own.size(), kWidth, 3});
      for (int64_t frame = 0; frame < kFrames; ++frame) {
        for (int64_t r = 0; r < mine.extent(0); ++r)
          fill<float>(mine.view().select(0, r), frame * 100 + kScale * own.begin + r);
        if (ranks.rank() == 0) wholes.emplace_back(DType::kF32, Shape{kScale * kRows, kWidth, 3});
        gather.post(stream, mine, ranks.rank() == 0 ? wholes.back().view() : TensorView{});
        fill<float>(mine, -1);  // the decoder's next frame
        Tensor row(DType::kF32, {kWidth, 3}), above(DType::kF32, {kWidth, 3}), below(DType::kF32, {kWidth, 3});
        fill<float>(row, ranks.rank());
        halo.exchange(row, row, above, below);
        if (ranks.rank() > 0) {
          EXPECT_EQ(wrong<float>(above, ranks.rank() - 1), 0);
        }
      }
      gather.wait();
      for (int64_t frame = 0; frame < static_cast<int64_t>(wholes.size()); ++frame) {
        for (int64_t r = 0; r < kScale * kRows; ++r) {
          EXPECT_EQ(wrong<float>(wholes[static_cast<size_t>(frame)].view().select(0, r), frame * 100 + r), 0);
        }
      }
    });
  }
}

}  // namespace
}  // namespace zoetrope::pipeline
