// Polynomials and lines for 2^f, minimax in relative error (Remez exchange), coefficients rounded to float32, lowest
// power first. Errors include float32 Horner evaluation with fused multiply-adds.
#pragma once

namespace zoetrope::kernels {

// On [0, 1], degree 5: 1.5e-7 at most, 6.1e-8 rms; for weights that stay float32. Degree 4 has 2.7e-6, degree 6 6.2e-8.
constexpr float kExp2Degree5[6] = {9.999999404e-01f, 6.931530833e-01f, 2.401536107e-01f,
                                   5.582631752e-02f, 8.989339694e-03f, 1.877576695e-03f};
// On [0, 1], degree 3: 7.5e-5; for weights that are rounded to bf16, 2^-9 = 2.0e-3. Degree 2 has 1.7e-3, which shows.
constexpr float kExp2Degree3[4] = {9.999251962e-01f, 6.958335638e-01f, 2.260671556e-01f, 7.802452147e-02f};
// The same on [−1/2, 1/2]: moved by 1/2, and divided by √2.
constexpr float kExp2Degree3Nearest[4] = {9.999280572e-01f, 6.932610273e-01f, 2.426111251e-01f, 5.517166853e-02f};
// On [−1/2, 1/2], degree 5: 2.2e-7 at most; where the integer is rounded to nearest.
constexpr float kExp2Degree5Nearest[6] = {1.000000119e+00f, 6.931469440e-01f, 2.402212024e-01f,
                                          5.550713092e-02f, 9.675540961e-03f, 1.327647245e-03f};

// 2^f on [0, 1) as a line in each sixteenth: value[k] + slope[k] · (f − k/16), k = ⌊16 f⌋; 1.2e-4 at most. Each is
// 2^(k/16) times the line whose relative error is −e at both ends and e between them.
struct Exp2Lines {
  alignas(64) float value[16];
  alignas(64) float slope[16];
};
constexpr Exp2Lines kExp2Lines = {
    {9.998826981e-01f, 1.044151306e+00f, 1.090379834e+00f, 1.138655066e+00f, 1.189067602e+00f, 1.241712093e+00f,
     1.296687484e+00f, 1.354096651e+00f, 1.414047718e+00f, 1.476652980e+00f, 1.542029977e+00f, 1.610301375e+00f,
     1.681595564e+00f, 1.756046176e+00f, 1.833792925e+00f, 1.914981961e+00f},
    {7.082974315e-01f, 7.396564484e-01f, 7.724038363e-01f, 8.066010475e-01f, 8.423123360e-01f, 8.796046972e-01f,
     9.185481071e-01f, 9.592157006e-01f, 1.001683831e+00f, 1.046032190e+00f, 1.092343926e+00f, 1.140706182e+00f,
     1.191209555e+00f, 1.243948936e+00f, 1.299023271e+00f, 1.356535912e+00f}};

}  // namespace zoetrope::kernels
