#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "device/arena.h"
#include "device/stream.h"

namespace zoetrope {
namespace {

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

// Buffers of rising size, one after another, take the size of the largest, not of all.
TEST(Arena, ALargerBlockReplacesUnusedOnes) {
  constexpr size_t kBlock = size_t{1} << 20;
  Arena empty;
  for (const size_t blocks : {2, 4, 8}) {
    const Arena::Scope scope(empty);
    empty.allocate(blocks * kBlock);
    EXPECT_EQ(empty.reserved(), blocks * kBlock);
  }
  Arena arena;
  const Arena::Scope outer(arena);
  auto* const kept = static_cast<char*>(arena.allocate(kBlock));
  std::memset(kept, 7, kBlock);
  for (const size_t blocks : {2, 4, 8}) {
    const Arena::Scope scope(arena);
    std::memset(arena.allocate(blocks * kBlock), 1, blocks * kBlock);
    EXPECT_EQ(arena.reserved(), (1 + blocks) * kBlock);
  }
  {
    const Arena::Scope scope(arena);
    void* const first = arena.allocate(5 * kBlock);
    EXPECT_NE(arena.allocate(5 * kBlock), first);
    EXPECT_EQ(arena.reserved(), 14 * kBlock);  // the first is in use
  }
  {
    const Arena::Scope scope(arena);
    arena.allocate(9 * kBlock);
    EXPECT_EQ(arena.reserved(), 10 * kBlock);
  }
  for (size_t i = 0; i < kBlock; ++i) ASSERT_EQ(kept[i], 7);
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
