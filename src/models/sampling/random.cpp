#include "models/sampling/random.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace zoetrope::sampling {

namespace {

constexpr size_t kBlock = 16;

// Box-Muller on sixteen uniforms, cosines in the first half, sines in the second
// (ATen/native/cpu/DistributionTemplates.h). float32 at every step but log and cos: the reference's vector log and cos
// are within 1.4e-6 of these.
void box_muller(float* values) {
  constexpr float kTwoPi = 2.0f * std::numbers::pi_v<float>;
  for (size_t j = 0; j < kBlock / 2; ++j) {
    const float radius = std::sqrt(-2.0f * std::log(1.0f - values[j]));
    const float theta = kTwoPi * values[j + kBlock / 2];
    values[j] = radius * std::cos(theta);
    values[j + kBlock / 2] = radius * std::sin(theta);
  }
}

}  // namespace

TorchGenerator::TorchGenerator(uint64_t seed) : engine_(static_cast<uint32_t>(seed)) {}

float TorchGenerator::uniform() { return static_cast<float>(static_cast<uint32_t>(engine_()) & 0xffffffu) * 0x1p-24f; }

double TorchGenerator::uniform53() {
  const uint64_t high = engine_();  // the first word is the high one
  const uint64_t bits = high << 32 | static_cast<uint64_t>(engine_());
  return static_cast<double>(bits & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
}

double TorchGenerator::small_normal() {
  if (spare_) {
    const double value = *spare_;
    spare_.reset();
    return value;
  }
  const double theta = 2.0 * std::numbers::pi * uniform53();
  const double radius = std::sqrt(-2.0 * std::log1p(-uniform53()));
  spare_ = radius * std::sin(theta);
  return radius * std::cos(theta);
}

void TorchGenerator::block(float* out) {
  std::generate(out, out + kBlock, [this] { return uniform(); });
  box_muller(out);
}

void TorchGenerator::randn(std::span<float> out) {
  if (out.size() < kBlock) {
    std::generate(out.begin(), out.end(), [this] { return static_cast<float>(small_normal()); });
    return;
  }
  std::generate(out.begin(), out.end(), [this] { return uniform(); });
  for (size_t i = 0; i + kBlock <= out.size(); i += kBlock) box_muller(&out[i]);
  // The last sixteen are drawn again, over part of the last full block, from the uniforms after all others.
  if (out.size() % kBlock != 0) block(&out[out.size() - kBlock]);
}

void TorchGenerator::randn(std::span<BFloat16> out) {
  if (out.size() < kBlock) {
    std::generate(out.begin(), out.end(), [this] { return to_bfloat16(static_cast<float>(small_normal())); });
    return;
  }
  float values[kBlock];
  const auto store = [&](size_t begin) {
    block(values);
    std::transform(values, values + kBlock, &out[begin], to_bfloat16);
  };
  for (size_t i = 0; i + kBlock <= out.size(); i += kBlock) store(i);
  // Here the remainder draws no uniforms of its own before the last sixteen are drawn again.
  if (out.size() % kBlock != 0) store(out.size() - kBlock);
}

}  // namespace zoetrope::sampling
