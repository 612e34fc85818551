#include "models/wan/transformer/patchify.h"

#include "base/error.h"
#include "tensor/dispatch.h"

namespace zoetrope::wan {

namespace {

using Patch = std::array<int64_t, 3>;

struct Grid {
  int64_t frames, height, width;  // in tokens
  int64_t tokens() const { return frames * height * width; }
};

Grid grid_of(const TensorView& latents, const Patch& patch) {
  ZT_CHECK(latents.rank() == 5);
  for (int axis = 0; axis < 3; ++axis) {
    ZT_CHECK(latents.extent(2 + axis) % patch[static_cast<size_t>(axis)] == 0,
             "latents {} are not a whole number of patches", latents.shape().to_string());
  }
  return {latents.extent(2) / patch[0], latents.extent(3) / patch[1], latents.extent(4) / patch[2]};
}

// First latent cell of token n, as an element offset within a sample and channel.
int64_t cell_offset(const TensorView& latents, const Patch& patch, const Grid& grid, int64_t n) {
  const int64_t w = n % grid.width, h = n / grid.width % grid.height, t = n / (grid.width * grid.height);
  return t * patch[0] * latents.stride(2) + h * patch[1] * latents.stride(3) + w * patch[2] * latents.stride(4);
}

// Memory moves, not arithmetic: a thread's share should outweigh waking it.
constexpr int64_t kGrainTokens = 256;

template <typename From, typename To>
void gather_token(const From* cell, const TensorView& latents, const Patch& patch, To* token) {
  for (int64_t c = 0; c < latents.extent(1); ++c) {
    for (int64_t dt = 0; dt < patch[0]; ++dt) {
      for (int64_t dy = 0; dy < patch[1]; ++dy) {
        const From* row = cell + c * latents.stride(1) + dt * latents.stride(2) + dy * latents.stride(3);
        for (int64_t dx = 0; dx < patch[2]; ++dx) *token++ = from_float<To>(to_float(row[dx * latents.stride(4)]));
      }
    }
  }
}

template <typename From, typename To>
void scatter_token(const From* token, const TensorView& latents, const Patch& patch, To* cell) {
  for (int64_t dt = 0; dt < patch[0]; ++dt) {
    for (int64_t dy = 0; dy < patch[1]; ++dy) {
      for (int64_t dx = 0; dx < patch[2]; ++dx) {
        To* at = cell + dt * latents.stride(2) + dy * latents.stride(3) + dx * latents.stride(4);
        for (int64_t c = 0; c < latents.extent(1); ++c) at[c * latents.stride(1)] = from_float<To>(to_float(*token++));
      }
    }
  }
}

// Calls body(From, To) with the element types of the two views.
template <typename Body>
void with_types(const TensorView& from, const TensorView& to, Body&& body) {
  with_compute_type(from.dtype(), "patch source", [&](auto from_tag) {
    with_compute_type(to.dtype(), "patch destination", [&](auto to_tag) { body(from_tag, to_tag); });
  });
}

}  // namespace

void patchify(Stream& stream, const TensorView& latents, const Patch& patch, IndexRange range,
              const TensorView& tokens) {
  const Grid grid = grid_of(latents, patch);
  const int64_t batch = latents.extent(0), count = range.size();
  ZT_CHECK(0 <= range.begin && range.end <= grid.tokens());
  ZT_CHECK(tokens.shape() == Shape({batch, count, latents.extent(1) * patch[0] * patch[1] * patch[2]}));
  ZT_CHECK(tokens.stride(2) == 1);
  with_types(latents, tokens, [&](auto from_tag, auto to_tag) {
    using From = typename decltype(from_tag)::type;
    using To = typename decltype(to_tag)::type;
    stream.team().parallel_for(batch * count, kGrainTokens, [&](IndexRange items, int) {
      for (int64_t item = items.begin; item < items.end; ++item) {
        const int64_t b = item / count, i = item % count;
        gather_token(latents.data<From>() + b * latents.stride(0) + cell_offset(latents, patch, grid, range.begin + i),
                     latents, patch, tokens.data<To>() + b * tokens.stride(0) + i * tokens.stride(1));
      }
    });
  });
}

void unpatchify(Stream& stream, const TensorView& tokens, const Patch& patch, const TensorView& latents) {
  const Grid grid = grid_of(latents, patch);
  const int64_t batch = latents.extent(0), count = grid.tokens();
  ZT_CHECK(tokens.shape() == Shape({batch, count, latents.extent(1) * patch[0] * patch[1] * patch[2]}));
  ZT_CHECK(tokens.stride(2) == 1);
  with_types(tokens, latents, [&](auto from_tag, auto to_tag) {
    using From = typename decltype(from_tag)::type;
    using To = typename decltype(to_tag)::type;
    stream.team().parallel_for(batch * count, kGrainTokens, [&](IndexRange items, int) {
      for (int64_t item = items.begin; item < items.end; ++item) {
        const int64_t b = item / count, n = item % count;
        scatter_token(tokens.data<From>() + b * tokens.stride(0) + n * tokens.stride(1), latents, patch,
                      latents.data<To>() + b * latents.stride(0) + cell_offset(latents, patch, grid, n));
      }
    });
  });
}

}  // namespace zoetrope::wan
