#include "models/wan/transformer/patchify.h"

#include <gtest/gtest.h>

#include "tensor/half.h"

namespace zoetrope::wan {
namespace {

constexpr std::array<int64_t, 3> kPatch{2, 3, 2};
constexpr int64_t kBatch = 2, kChannels = 3, kFrames = 4, kHeight = 6, kWidth = 10;
constexpr int64_t kTokens = (kFrames / 2) * (kHeight / 3) * (kWidth / 2);
constexpr int64_t kTokenSize = kChannels * 2 * 3 * 2;

// Every element tells where it is.
Tensor numbered(const Shape& shape) {
  Tensor tensor = Tensor::uninitialized(DType::kF32, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = static_cast<float>(i);
  return tensor;
}

float at(const TensorView& t, int64_t a, int64_t b, int64_t c, int64_t d, int64_t e) {
  return t.data<float>()[a * t.stride(0) + b * t.stride(1) + c * t.stride(2) + d * t.stride(3) + e * t.stride(4)];
}

// Calls body(b, n, c, dt, dy, dx, value of the latent cell) for every cell, by the definition.
template <typename Body>
void for_cells(const TensorView& latents, Body&& body) {
  const int64_t rows = kHeight / kPatch[1], columns = kWidth / kPatch[2];
  for (int64_t b = 0; b < kBatch; ++b)
    for (int64_t c = 0; c < kChannels; ++c)
      for (int64_t f = 0; f < kFrames; ++f)
        for (int64_t y = 0; y < kHeight; ++y)
          for (int64_t x = 0; x < kWidth; ++x) {
            const int64_t n = (f / kPatch[0] * rows + y / kPatch[1]) * columns + x / kPatch[2];
            body(b, n, c, f % kPatch[0], y % kPatch[1], x % kPatch[2], at(latents, b, c, f, y, x));
          }
}

TEST(Patchify, PutsChannelsSlowest) {
  Stream stream(2);
  const Tensor latents = numbered({kBatch, kChannels, kFrames, kHeight, kWidth});
  const Tensor tokens(DType::kF32, {kBatch, kTokens, kTokenSize});
  patchify(stream, latents, kPatch, {0, kTokens}, tokens);
  for_cells(latents, [&](auto b, auto n, auto c, auto dt, auto dy, auto dx, float value) {
    const int64_t i = ((c * kPatch[0] + dt) * kPatch[1] + dy) * kPatch[2] + dx;
    ASSERT_EQ(tokens.data<float>()[(b * kTokens + n) * kTokenSize + i], value);
  });
}

TEST(Patchify, RangesGiveTheirTokensOnly) {
  Stream stream(2);
  const Tensor latents = numbered({kBatch, kChannels, kFrames, kHeight, kWidth});
  const Tensor whole(DType::kF32, {kBatch, kTokens, kTokenSize});
  patchify(stream, latents, kPatch, {0, kTokens}, whole);
  for (const IndexRange range :
       {IndexRange{0, 0}, IndexRange{0, 1}, IndexRange{3, 11}, IndexRange{kTokens - 1, kTokens}}) {
    const Tensor part(DType::kF32, {kBatch, range.size(), kTokenSize});
    patchify(stream, latents, kPatch, range, part);
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t i = 0; i < range.size() * kTokenSize; ++i) {
        ASSERT_EQ(part.data<float>()[b * range.size() * kTokenSize + i],
                  whole.data<float>()[(b * kTokens + range.begin) * kTokenSize + i]);
      }
  }
}

TEST(Unpatchify, ReadsChannelsFastest) {
  Stream stream(2);
  const Tensor tokens = numbered({kBatch, kTokens, kTokenSize});
  const Tensor latents(DType::kF32, {kBatch, kChannels, kFrames, kHeight, kWidth});
  unpatchify(stream, tokens, kPatch, latents);
  for_cells(latents, [&](auto b, auto n, auto c, auto dt, auto dy, auto dx, float value) {
    const int64_t i = ((dt * kPatch[1] + dy) * kPatch[2] + dx) * kChannels + c;
    ASSERT_EQ(tokens.data<float>()[(b * kTokens + n) * kTokenSize + i], value);
  });
}

TEST(Patchify, OfOneChannelIsUndoneByUnpatchify) {
  // With one channel both orders of a token are the same.
  Stream stream(2);
  const Tensor latents = numbered({kBatch, 1, kFrames, kHeight, kWidth});
  const Tensor tokens(DType::kF32, {kBatch, kTokens, 12}), back(DType::kF32, latents.shape());
  patchify(stream, latents, kPatch, {0, kTokens}, tokens);
  unpatchify(stream, tokens, kPatch, back);
  for (int64_t i = 0; i < latents.size(); ++i) ASSERT_EQ(back.data<float>()[i], latents.data<float>()[i]);
}

TEST(Patchify, HonoursStridesAndRounds) {
  Stream stream(1);
  const Tensor memory = numbered({kFrames, kHeight, kWidth, kChannels, kBatch});
  const TensorView latents = memory.view().permute({4, 3, 0, 1, 2});
  const Tensor tokens(DType::kBF16, {kBatch, kTokens, kTokenSize});
  patchify(stream, latents, kPatch, {0, kTokens}, tokens);
  for_cells(latents, [&](auto b, auto n, auto c, auto dt, auto dy, auto dx, float value) {
    const int64_t i = ((c * kPatch[0] + dt) * kPatch[1] + dy) * kPatch[2] + dx;
    ASSERT_EQ(tokens.data<BFloat16>()[(b * kTokens + n) * kTokenSize + i].bits, to_bfloat16(value).bits);
  });
}

}  // namespace
}  // namespace zoetrope::wan
