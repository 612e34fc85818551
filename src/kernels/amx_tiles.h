// Configures the AMX tiles of the calling thread, each of sixteen lines of 64 bytes, for the lifetime of the object.
// Include only in files compiled for AMX; construct only where cpu_features() has AMX.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

namespace zoetrope::kernels {

inline constexpr int kAmxTileRows = 16, kAmxTileLine = 64;  // lines, and bytes of one

class AmxTiles {
 public:
  AmxTiles() {
    constexpr int kTiles = 8;
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof config == 64);
    std::fill_n(config.bytes, kTiles, static_cast<uint16_t>(kAmxTileLine));
    std::fill_n(config.rows, kTiles, static_cast<uint8_t>(kAmxTileRows));
    asm volatile("" : : "r"(&config) : "memory");  // GCC 12 does not see that the next line reads it
    _tile_loadconfig(&config);
  }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
  ~AmxTiles() { _tile_release(); }
};

}  // namespace zoetrope::kernels
