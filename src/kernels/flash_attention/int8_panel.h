// Where the parts of int8 packs and weights are: shared by what packs them and what multiplies them. Plain arithmetic,
// inlined everywhere (see tile.h).
//
// Packed keys:   [panel][steps + 1][panel_keys] words; the last is the key's float32 scale, others are terms of a key:
//                four bytes, plus 128 each, because a dot product takes one unsigned operand; or, where products are of
//                int16, two of these.
// Packed values: per key tile the scales and the centers of its channels, float32, then [value panel][key panel][steps]
//                [width][lanes] words: four keys of a channel as bytes, or two as int16. The keys of a step are those
//                of int8_step_key().
#pragma once

#include <cstdint>

namespace zoetrope::kernels {

constexpr int64_t kInt8PanelKeys = 64, kInt8ValueLanes = 16;
constexpr float kInt8LargestWeight = 255;
constexpr float kLog2Of255 = 7.99435343685885793764f;

[[gnu::always_inline]] inline constexpr int64_t int8_key_bytes(int64_t steps) { return 4 * (steps + 1); }
// `channels`: D rounded up to whole vectors.
[[gnu::always_inline]] inline constexpr int64_t int8_value_scale_bytes(int64_t channels) { return 2 * 4 * channels; }
// `terms`: of a word, four or two.
[[gnu::always_inline]] inline constexpr int64_t int8_value_tile_bytes(int64_t keys, int64_t channels, int64_t terms) {
  return int8_value_scale_bytes(channels) + keys / terms * channels * 4;
}

// The first of the keys of a step of a panel's weights and values. Vectors of sixteen weights become bytes in units of
// four, one of each vector in turn.
[[gnu::always_inline]] inline constexpr int64_t int8_step_key(int64_t step, int64_t terms) {
  return terms == 2 ? 2 * step : step % 4 * 16 + step / 4 * 4;
}

}  // namespace zoetrope::kernels
