#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <vector>

#include "device/arena.h"
#include "device/stream.h"
#include "device/thread_team.h"

namespace zoetrope {
namespace {

TEST(ThreadTeam, RunsEveryIndexOnceWhateverTheTeam) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadTeam team(threads);
    for (const int64_t count : {0, 1, 2, 7, 64}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      team.parallel_for(count, 1, [&](IndexRange range, int) {
        for (int64_t i = range.begin; i < range.end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (const auto& n : seen) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ThreadTeam, GivesEachThreadItsOwnNumber) {
  ThreadTeam team(4);
  std::vector<std::atomic<int>> seen(4);
  team.run([&](int thread) { ++seen[static_cast<size_t>(thread)]; });
  for (const auto& n : seen) EXPECT_EQ(n, 1);
}

// Inside a program's own parallel region OpenMP gives one thread where many are asked for.
TEST(ThreadTeam, RunsEveryIndexWithinAParallelRegion) {
#ifdef ZOETROPE_STD_THREAD_TEAM
  GTEST_SKIP() << "the team is no OpenMP region here, and the thread sanitizer cannot see libgomp's own";
#else
  std::atomic<int> callers = 0;
  std::vector<std::atomic<int>> seen(4);
#pragma omp parallel num_threads(2)
  {
    ++callers;
    ThreadTeam team(4);
    team.run([&](int thread) { ++seen[static_cast<size_t>(thread)]; });
  }
  for (const auto& n : seen) EXPECT_EQ(n, callers);
#endif
}

TEST(Arena, ReusesWhatAScopeGaveBack) {
  Arena arena;
  void* first = nullptr;
  {
    const Arena::Scope scope(arena);
    first = arena.allocate(1000);
    EXPECT_NE(arena.allocate(1), first);
  }
  const Arena::Scope scope(arena);
  EXPECT_EQ(arena.allocate(10), first);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.allocate(3 << 20)) % 64, 0u);
  EXPECT_GE(arena.reserved(), size_t{4 << 20});
}

TEST(Copy, MovesStridedTensorsAndCountsTheBytes) {
  Tensor source(DType::kF32, {3, 5, 7}), target(DType::kF32, {7, 3, 5});
  std::iota(source.data<float>(), source.data<float>() + source.size(), 0.0f);
  Stream stream(2);
  copy(stream, target.view().permute({1, 2, 0}), source);
  for (int64_t a = 0; a < 3; ++a) {
    for (int64_t b = 0; b < 5; ++b) {
      for (int64_t c = 0; c < 7; ++c) {
        EXPECT_EQ(target.data<float>()[(c * 3 + a) * 5 + b], source.data<float>()[(a * 5 + b) * 7 + c]);
      }
    }
  }
  EXPECT_EQ(stream.copied_bytes(), 3 * 5 * 7 * 4);
}

TEST(Copy, OfOneLongRunIsWhole) {
  Tensor source(DType::kU8, {1 << 20}), target(DType::kU8, {1 << 20});
  for (int64_t i = 0; i < source.size(); ++i) source.data<uint8_t>()[i] = static_cast<uint8_t>(i * 31);
  Stream stream(3);
  copy(stream, target, source);
  EXPECT_EQ(std::memcmp(source.data<void>(), target.data<void>(), source.view().bytes()), 0);
}

}  // namespace
}  // namespace zoetrope
