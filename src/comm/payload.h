// Test data with its origin: each 8-byte word encodes the sender, the message and the position in it, so that a wrong
// word shows where it came from. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

namespace zoetrope::comm {

struct Origin {
  int sender = 0;
  int receiver = 0;
  int message = 0;
};

// Words: sender 8 bits, receiver 8, message 12, position 36. The tail of a size that is not a multiple of 8 is the
// front of the next word.
inline uint64_t payload_word(const Origin& origin, size_t position) {
  return static_cast<uint64_t>(origin.sender + 1) << 56 | static_cast<uint64_t>(origin.receiver + 1) << 48 |
         static_cast<uint64_t>(origin.message & 0xfff) << 36 | static_cast<uint64_t>(position);
}

inline std::vector<char> make_payload(const Origin& origin, size_t bytes) {
  std::vector<char> data(bytes);
  for (size_t begin = 0; begin < bytes; begin += 8) {
    const uint64_t word = payload_word(origin, begin / 8);
    std::memcpy(data.data() + begin, &word, std::min<size_t>(8, bytes - begin));
  }
  return data;
}

inline testing::AssertionResult is_payload(const std::vector<char>& data, const Origin& origin) {
  for (size_t begin = 0; begin < data.size(); begin += 8) {
    uint64_t found = 0;
    uint64_t expected = payload_word(origin, begin / 8);
    const size_t count = std::min<size_t>(8, data.size() - begin);
    std::memcpy(&found, data.data() + begin, count);
    if (count < 8) expected &= (uint64_t{1} << (8 * count)) - 1;
    if (found == expected) continue;
    return testing::AssertionFailure() << fmt::format(
               "word {} of message {} from rank {} to rank {} holds word {} of message {} from rank {} to rank {}",
               begin / 8, origin.message, origin.sender, origin.receiver, found & 0xfffffffff, found >> 36 & 0xfff,
               static_cast<int>(found >> 56) - 1, static_cast<int>(found >> 48 & 0xff) - 1);
  }
  return testing::AssertionSuccess();
}

}  // namespace zoetrope::comm
