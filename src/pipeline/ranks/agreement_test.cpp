#include "pipeline/ranks/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "zoetrope/error.h"

namespace zoetrope::pipeline {
namespace {

TEST(Agreement, EqualSettingsPass) {
  comm::run_ranks(3, [](comm::Communicator& world) { require_agreement(world, "seed=1\nheight=16\n"); });
}

TEST(Agreement, EveryRankThrowsTheSameSentence) {
  std::atomic<int> thrown = 0;
  comm::run_ranks(4, [&](comm::Communicator& world) {
    try {
      require_agreement(world, world.rank() == 2 ? "seed=1\nheight=32\n" : "seed=1\nheight=16\n");
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("rank 2 has height=32 where rank 0 has height=16"));
      ++thrown;
    }
  });
  EXPECT_EQ(thrown, 4);
}

TEST(Agreement, WhatOneRankThrowsEveryRankThrows) {
  std::atomic<int> thrown = 0;
  comm::run_ranks(3, [&](comm::Communicator& world) {
    fail_together(world, "test", [] {});
    try {
      fail_together(world, "test", [&] {
        if (world.rank() == 1) throw std::runtime_error("rank 1 refuses");
      });
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "rank 1 refuses");
      ++thrown;
    }
    EXPECT_TRUE(on_every_rank(world, true));
    EXPECT_FALSE(on_every_rank(world, world.rank() != 2));
  });
  EXPECT_EQ(thrown, 3);
}

TEST(Agreement, RanksAreAsManyAsTheyAreSaidToBe) {
  comm::run_ranks(2, [](comm::Communicator& world) {
    require_ranks({}, world);
    require_ranks(2, world);
    EXPECT_THROW(require_ranks(3, world), Error);
  });
}

TEST(Agreement, AMissingLineIsADifference) {
  EXPECT_THROW(
      comm::run_ranks(
          2, [](comm::Communicator& world) { require_agreement(world, world.rank() == 0 ? "a=1\nb=2\n" : "a=1\n"); }),
      Error);
}

}  // namespace
}  // namespace zoetrope::pipeline
