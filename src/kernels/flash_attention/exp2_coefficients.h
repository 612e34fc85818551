// Polynomials for 2^f on [−1/2, 1/2], minimax in relative error (Remez exchange), coefficients rounded to float32,
// lowest power first. Errors include float32 Horner evaluation with fused multiply-adds.
#pragma once

namespace zoetrope::kernels {

// 2.1e-7 (7.5e-8 without rounding): for weights that stay float32. Degree 4 has 2.7e-6, degree 6 7.6e-8.
constexpr float kExp2Degree5[6] = {1.000000119e+00f, 6.931469440e-01f, 2.402212024e-01f,
                                   5.550713092e-02f, 9.675540961e-03f, 1.327647245e-03f};
// 7.5e-5: for weights that are rounded to bf16, 2^-9 = 2.0e-3. Degree 2 has 1.7e-3, which shows.
constexpr float kExp2Degree3[4] = {9.999280572e-01f, 6.932609677e-01f, 2.426111251e-01f, 5.517166853e-02f};

}  // namespace zoetrope::kernels
