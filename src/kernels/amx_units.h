// The matrix units (AMX) of the thread that calls, with every tile of sixteen lines of 64 bytes, for as long as this
// lives. To be included only where the compiler may use them, and made only where cpu_features().amx_bf16 is true.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

namespace zoetrope::kernels {

inline constexpr int kAmxTileRows = 16, kAmxTileLine = 64;  // lines, and bytes of one

class AmxUnits {
 public:
  AmxUnits() {
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
  AmxUnits(const AmxUnits&) = delete;
  AmxUnits& operator=(const AmxUnits&) = delete;
  ~AmxUnits() { _tile_release(); }
};

}  // namespace zoetrope::kernels
