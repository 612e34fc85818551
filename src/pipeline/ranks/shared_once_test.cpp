#include "pipeline/ranks/shared_once.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>

namespace zoetrope::pipeline {
namespace {

// Holds what is made until `done`.
std::thread maker_of(SharedOnce<int>& shared, std::atomic<bool>& begun, const std::atomic<bool>& done) {
  std::thread maker([&] {
    const std::shared_ptr<int> made = shared.get([&] {
      begun = true;
      while (!done) std::this_thread::yield();
      return std::make_shared<int>(7);
    });
    EXPECT_EQ(*made, 7);
  });
  while (!begun) std::this_thread::yield();
  return maker;
}

std::shared_ptr<int> not_made_again() {
  ADD_FAILURE() << "made twice";
  return nullptr;
}

TEST(SharedOnce, WhoWaitsIsAskedNowAndThen) {
  SharedOnce<int> shared(true);
  std::atomic<bool> begun = false, done = false;
  std::thread maker = maker_of(shared, begun, done);
  int ticks = 0;
  const std::shared_ptr<int> same = shared.get(not_made_again, [&] { done = ++ticks == 2; });
  maker.join();
  EXPECT_EQ(*same, 7);
  EXPECT_GE(ticks, 2);
}

TEST(SharedOnce, ATickMayEndTheWait) {
  SharedOnce<int> shared;
  std::atomic<bool> begun = false, done = false;
  std::thread maker = maker_of(shared, begun, done);
  EXPECT_THROW(shared.get(not_made_again, [] { throw std::runtime_error("interrupted"); }), std::runtime_error);
  done = true;
  maker.join();
}

TEST(SharedOnce, IsMadeAgainAfterAnError) {
  SharedOnce<int> shared;
  EXPECT_THROW(shared.get([]() -> std::shared_ptr<int> { throw std::runtime_error("no file"); }), std::runtime_error);
  EXPECT_EQ(*shared.get([] { return std::make_shared<int>(3); }), 3);
}

TEST(SharedOnce, WhatIsUnfitIsNotKept) {
  SharedOnce<int> shared(true);
  shared.get([] { return std::make_shared<int>(3); });
  shared.release_kept_if([](int value) { return value > 3; });
  EXPECT_TRUE(shared.known());
  shared.release_kept_if([](int value) { return value == 3; });
  EXPECT_FALSE(shared.known());
  shared.release_kept_if([](int) { return true; });  // of nothing
  EXPECT_EQ(*shared.get([] { return std::make_shared<int>(4); }), 4);
}

}  // namespace
}  // namespace zoetrope::pipeline
