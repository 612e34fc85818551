// NaN and Inf among the inputs: the result is non-finite in exactly the elements where the float64 reference is, over
// every grid, whichever block or message they travel in.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention_case.h"
#include "tensor/half.h"

namespace zoetrope::attention::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

void set(Tensor& x, int64_t token, int64_t head, int64_t d, float value) {
  const TensorView element = x.view().slice(1, token, token + 1).slice(2, head, head + 1).slice(3, d, d + 1);
  if (x.dtype() == DType::kBF16) *element.data<BFloat16>() = to_bfloat16(value);
  else *element.data<float>() = value;
}

// Elements of this rank's o that are finite where the reference is not, or the other way round.
int64_t count_misplaced(const TensorView& o, const TensorView& reference) {
  int64_t misplaced = 0;
  for (int64_t b = 0; b < o.extent(0); ++b)
    for (int64_t s = 0; s < o.extent(1); ++s)
      for (int64_t h = 0; h < o.extent(2); ++h)
        for (int64_t d = 0; d < o.extent(3); ++d) {
          const auto at = [&](const TensorView& x) {
            return b * x.stride(0) + s * x.stride(1) + h * x.stride(2) + d * x.stride(3);
          };
          const float ours = o.dtype() == DType::kBF16 ? to_float(o.data<BFloat16>()[at(o)]) : o.data<float>()[at(o)];
          if (std::isfinite(ours) != std::isfinite(reference.data<double>()[at(reference)])) ++misplaced;
        }
  return misplaced;
}

struct Poison {
  const char* name;
  Tensor Case::*tensor;
  float value;
};

constexpr Poison kPoisons[] = {
    {"NaN in q", &Case::q, kNan},   {"Inf in q", &Case::q, kInf}, {"NaN in k", &Case::k, kNan},
    {"-Inf in k", &Case::k, -kInf}, {"NaN in v", &Case::v, kNan}, {"Inf in v", &Case::v, kInf},
};

void run_poisoned(comm::Communicator& comm, int ulysses, int ring) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Poison& poison : kPoisons) {
      Case whole({1, 83, int64_t{ulysses} + 1, 16, dtype}, 19);
      set(whole.*poison.tensor, 40, ulysses, 5, poison.value);
      const Tensor reference = whole.reference();
      for (const Softmax softmax : {Softmax::kOnline, Softmax::kFixedMax}) {
        const Strategy strategy{.layout = {.ulysses = ulysses, .ring = ring, .direction = Direction::kTwoWay},
                                .softmax = softmax};
        ContextAttention attention = plan(whole.problem, strategy, comm, 1);
        const IndexRange own = attention.tokens();
        Shard shard(whole, own);
        attention.run(shard.q, shard.k, shard.v, {}, shard.o);
        EXPECT_EQ(count_misplaced(shard.o, reference.view().slice(1, own.begin, own.end)), 0)
            << fmt::format("{} {} softmax {}", poison.name, dtype_name(dtype), static_cast<int>(softmax));
      }
    }
  }
}

const bool kRegistered = register_layouts("NonFinite", {1, 2, 3, 4}, run_poisoned);

}  // namespace
}  // namespace zoetrope::attention::testing
