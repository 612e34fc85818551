#include "device/copy_bytes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace zoetrope {
namespace {

// Every byte differs from its neighbours and from those a page, and four pages, away.
uint8_t pattern(size_t i) { return static_cast<uint8_t>(i * 31 + (i >> 8) * 7 + (i >> 14) * 3 + 1); }

// Sizes round the threshold and round the groups of pages, misaligned on both sides; nothing outside the target
// changes.
TEST(CopyBytes, CopiesEveryByteAndNoOther) {
  constexpr size_t kGroup = 4 * 4096;
  constexpr size_t kMargin = 128;
  constexpr uint8_t kUntouched = 0xa5;
  std::vector<size_t> sizes = {0, 1, 63, 64, 65, 4096};
  for (const size_t size : {kStreamedBytes, kStreamedBytes + kGroup, 3 * kStreamedBytes})
    for (const size_t delta : {size_t{0}, size_t{1}, size_t{63}, size_t{64}}) {
      sizes.push_back(size - delta);
      sizes.push_back(size + delta);
    }
  std::vector<uint8_t> source(3 * kStreamedBytes + 4 * kMargin);
  for (size_t i = 0; i < source.size(); ++i) source[i] = pattern(i);
  for (const size_t size : sizes)
    for (const size_t to : {size_t{0}, size_t{1}, size_t{32}, size_t{63}})
      for (const size_t from : {size_t{0}, size_t{5}, size_t{64}}) {
        std::vector<uint8_t> target(size + 2 * kMargin, kUntouched);
        copy_bytes(target.data() + kMargin + to, source.data() + from, size);
        size_t wrong = 0;
        for (size_t i = 0; i < target.size(); ++i) {
          const bool inside = i >= kMargin + to && i < kMargin + to + size;
          wrong += target[i] != (inside ? pattern(i - kMargin - to + from) : kUntouched) ? 1 : 0;
        }
        ASSERT_EQ(wrong, 0u) << size << " bytes to +" << to << " from +" << from;
      }
}

}  // namespace
}  // namespace zoetrope
