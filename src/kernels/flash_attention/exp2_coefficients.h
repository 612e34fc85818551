// Polynomials for 2^f, minimax in relative error (Remez exchange), coefficients rounded to float32, lowest power first.
// Errors include float32 Horner evaluation with fused multiply-adds.
#pragma once

namespace zoetrope::kernels {

// On [0, 1], degree 5: 1.5e-7 at most, 6.1e-8 rms; for weights that stay float32. Degree 4 has 2.7e-6, degree 6 6.2e-8.
constexpr float kExp2Degree5[6] = {9.999999404e-01f, 6.931530833e-01f, 2.401536107e-01f,
                                   5.582631752e-02f, 8.989339694e-03f, 1.877576695e-03f};
// On [0, 1], degree 3: 7.5e-5; for weights that are rounded to bf16, 2^-9 = 2.0e-3. Degree 2 has 1.7e-3, which shows.
constexpr float kExp2Degree3[4] = {9.999251962e-01f, 6.958335638e-01f, 2.260671556e-01f, 7.802452147e-02f};
// The same on [−1/2, 1/2]: moved by 1/2, and divided by √2.
constexpr float kExp2Degree3Nearest[4] = {9.999280572e-01f, 6.932610273e-01f, 2.426111251e-01f, 5.517166853e-02f};
// On [−1/2, 1/2], degree 5: 2.1e-7 at most; where the integer is rounded to nearest.
constexpr float kExp2Degree5Nearest[6] = {1.000000119e+00f, 6.931469440e-01f, 2.402212024e-01f,
                                          5.550713092e-02f, 9.675540961e-03f, 1.327647245e-03f};

}  // namespace zoetrope::kernels
