// Attention shapes in named groups. A shape that matters to somebody is added to one, and from then on
// `zoetrope bench kernel shapes=GROUP` compares it with the float64 definition and times it. The unit tests walk the
// group `small` alone, with every kernel and softmax (bench/cases_test.cpp); the others take too long. Data only.
#pragma once

#include <cstdint>

namespace zoetrope::problems {

struct AttentionShape {
  const char* group;
  int64_t batch, queries, keys, heads, head_dim;
  // Share of the keys that a mask leaves; 0: no mask.
  double key_lengths = 0;
  double key_mask = 0;
};

inline constexpr AttentionShape kAttentionShapes[] = {
    // The lengths of the published tables, one head and two.
    {"lengths", 1, 512, 512, 1, 128},
    {"lengths", 1, 1024, 1024, 1, 128},
    {"lengths", 1, 4096, 4096, 1, 128},
    {"lengths", 1, 16384, 16384, 1, 128},
    {"lengths", 1, 32760, 32760, 1, 128},  // Wan 480p, 81 frames
    {"two_heads", 1, 512, 512, 2, 128},
    {"two_heads", 1, 1024, 1024, 2, 128},
    {"two_heads", 1, 4096, 4096, 2, 128},
    {"two_heads", 1, 16384, 16384, 2, 128},
    {"two_heads", 1, 32760, 32760, 2, 128},
    // Every head size that a model in use has.
    {"head_dims", 1, 4096, 4096, 2, 64},
    {"head_dims", 1, 4096, 4096, 2, 80},
    {"head_dims", 1, 4096, 4096, 2, 128},
    {"head_dims", 1, 4096, 4096, 2, 160},
    {"head_dims", 1, 4096, 4096, 2, 256},
    // Lengths that nothing divides.
    {"primes", 1, 1021, 1021, 1, 128},
    {"primes", 1, 4093, 4093, 1, 128},
    {"primes", 1, 4093, 4093, 2, 128},
    // Cross-attention of a quarter of the 480p tokens to 512 text tokens.
    {"cross", 1, 8190, 512, 2, 128},
    // What a mask costs per key it leaves.
    {"masks", 1, 4096, 4096, 2, 128},
    {"masks", 1, 4096, 4096, 2, 128, 1.0, 0},
    {"masks", 1, 4096, 4096, 2, 128, 0.75, 0},
    {"masks", 1, 4096, 4096, 2, 128, 0, 1.0},
    {"masks", 1, 4096, 4096, 2, 128, 0, 0.75},
    // Fast enough for tests; each at another edge.
    {"small", 1, 128, 128, 2, 128},
    {"small", 2, 61, 257, 3, 40},
    {"small", 1, 67, 131, 1, 80, 0.75, 0},
    {"small", 2, 64, 100, 2, 64, 0, 0.75},
};

}  // namespace zoetrope::problems
