// FNV-1a, 64 bits (Fowler, Noll, Vo): names and contents by number. Against accidents, not against malice.
#pragma once

#include <cstdint>
#include <string_view>

namespace zoetrope::io {

// Of what follows text whose hash is `hash`.
constexpr uint64_t fnv1a64(std::string_view text, uint64_t hash = 0xCBF29CE484222325u) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace zoetrope::io
