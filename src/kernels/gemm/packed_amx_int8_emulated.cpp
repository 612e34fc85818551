// The int8 kernel for AMX with tiles in memory, so that it can be tested where the CPU has AVX-512 but no AMX. They
// follow the SDM for palette 1, and end the program where the CPU would raise an exception.
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/gemm/testing.h"

namespace zoetrope::kernels {
namespace {

struct EmulatedTiles {
  static constexpr int kCount = 8, kMostRows = 16, kMostBytes = 64;
  struct Tile {
    int rows, bytes;  // as configured, zeros: not
    uint8_t data[kMostRows][kMostBytes];
  };
  bool configured;
  Tile tiles[kCount];

  static void check(bool fine, const char* why) {
    if (fine) return;
    std::fprintf(stderr, "emulated AMX: %s\n", why);
    std::abort();
  }

  Tile& at(int index) {
    check(configured, "no tiles are configured");
    check(index < kCount && tiles[index].rows > 0, "the tile is not configured");
    return tiles[index];
  }

  void configure(const void* config) {
    uint8_t bytes[64];
    std::memcpy(bytes, config, sizeof bytes);
    check(bytes[0] == 1 && bytes[1] == 0, "palette 1 and row 0 are needed");
    *this = {};
    for (int i = 0; i < 16; ++i) {
      const int width = bytes[16 + 2 * i] | bytes[17 + 2 * i] << 8, rows = bytes[48 + i];
      if (i >= kCount) check(width == 0 && rows == 0, "there are eight tiles");
      check(bytes[2 + std::min(i, 13)] == 0, "reserved bytes are zeros");
      check(width <= kMostBytes && rows <= kMostRows && (width == 0) == (rows == 0), "the size of a tile");
      if (i >= kCount) continue;
      tiles[i].rows = rows;
      tiles[i].bytes = width;
    }
    configured = true;
  }
  void release() { *this = {}; }

  void zero(int index) { std::memset(at(index).data, 0, sizeof(Tile::data)); }
  void load(int index, const void* from, int64_t stride) {
    zero(index);
    Tile& tile = tiles[index];
    for (int row = 0; row < tile.rows; ++row)
      std::memcpy(tile.data[row], static_cast<const char*>(from) + row * stride, static_cast<size_t>(tile.bytes));
  }
  void store(int index, void* to, int64_t stride) {
    const Tile& tile = at(index);
    for (int row = 0; row < tile.rows; ++row)
      std::memcpy(static_cast<char*>(to) + row * stride, tile.data[row], static_cast<size_t>(tile.bytes));
  }

  // Signed bytes of a times unsigned bytes of b.
  void dpbsud(int to_index, int a_index, int b_index) {
    check(to_index != a_index && to_index != b_index && a_index != b_index, "three different tiles are needed");
    Tile &to = at(to_index), &a = at(a_index), &b = at(b_index);
    check(to.rows == a.rows && to.bytes == b.bytes && a.bytes == 4 * b.rows && to.bytes % 4 == 0, "sizes do not match");
    uint8_t result[kMostRows][kMostBytes] = {};
    for (int row = 0; row < to.rows; ++row) {
      int32_t sums[kMostBytes / 4];
      std::memcpy(sums, to.data[row], sizeof sums);
      for (int k = 0; k < a.bytes / 4; ++k)
        for (int column = 0; column < to.bytes / 4; ++column)
          for (int i = 0; i < 4; ++i)
            sums[column] += static_cast<int8_t>(a.data[row][4 * k + i]) * b.data[k][4 * column + i];
      std::memcpy(result[row], sums, static_cast<size_t>(to.bytes));
    }
    std::memcpy(to.data, result, sizeof result);
  }
};

constinit thread_local EmulatedTiles emulated{};

}  // namespace
}  // namespace zoetrope::kernels

#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#define _tile_loadconfig(config) emulated.configure(config)
#define _tile_release() emulated.release()
#define _tile_loadd(tile, from, stride) emulated.load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated.store(tile, to, stride)
#define _tile_zero(tile) emulated.zero(tile)
#define _tile_dpbsud(to, a, b) emulated.dpbsud(to, a, b)
#define AmxTiles EmulatedAmxTiles  // the linker keeps one of a name
#include "kernels/gemm/int8_amx_tile.h"

namespace zoetrope::kernels::test {

const Int8Kernel& int8_kernel_emulated_amx() {
  static const Int8Kernel kernel = make_amx_kernel();
  return kernel;
}

}  // namespace zoetrope::kernels::test
