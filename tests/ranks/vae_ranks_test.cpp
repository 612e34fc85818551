// The VAE with the rows of its frames split over ranks gives what one rank gives: both generations, decoder and
// encoder, heights that divide by no number of ranks, float32 and bf16, on threads and (same text, under mpirun) on
// processes. And the comparison notices one wrong byte in anything that travels.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "comm/rank_test.h"
#include "comm/testing.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_test_util.h"
#include "pipeline/ranks/halo_ranks.h"

namespace zoetrope {
namespace {

using pipeline::FrameGather;
using pipeline::HaloRanks;
using pipeline::rows_of_part;
using wan::difference;
using wan::random_tensor;

enum class Half { kDecoder, kEncoder };
enum class Generation { kPlain, kResidual };

struct Case {
  const char* name;
  Generation generation;
  Half half;
  int64_t frames, rows, width;  // of the latents
  int64_t rest = 0;             // pixel rows of the video beyond them
  kernels::ConvAlgorithm algorithm = kernels::ConvAlgorithm::kDirect;
};

// Rows: one for each of seven ranks, and numbers that leave a rest for 2, 3, 4 and 7.
constexpr Case kCases[] = {
    {"decode_one_row_each", Generation::kPlain, Half::kDecoder, 3, 7, 3},
    {"decode_eleven_rows", Generation::kPlain, Half::kDecoder, 2, 11, 2},
    {"encode_one_row_each", Generation::kPlain, Half::kEncoder, 2, 7, 3},
    {"encode_eleven_rows", Generation::kPlain, Half::kEncoder, 2, 11, 2},
    {"encode_rows_that_are_cut_off", Generation::kPlain, Half::kEncoder, 2, 9, 2, 3},
    {"residual_decode_eight_rows", Generation::kResidual, Half::kDecoder, 3, 8, 2},
    {"residual_encode_one_row_each", Generation::kResidual, Half::kEncoder, 3, 7, 2},
    {"residual_encode_rows_that_are_cut_off", Generation::kResidual, Half::kEncoder, 2, 9, 1, 7},
    // Tiles of two rows, of which parts that begin at odd rows have halves.
    {"winograd_decode_eleven_rows", Generation::kPlain, Half::kDecoder, 2, 11, 2, 0, kernels::ConvAlgorithm::kWinograd},
    {"winograd_encode_one_row_each", Generation::kResidual, Half::kEncoder, 2, 7, 2, 0,
     kernels::ConvAlgorithm::kWinograd},
};

struct Model {
  explicit Model(const wan::VaeConfig& vae_config) : config(vae_config), source(wan::test_weights(config)) {}
  wan::VaeConfig config;
  std::shared_ptr<const io::WeightSource> source;
};

const Model& model(const Case& c) {
  static const Model plain(wan::small_config()), residual(wan::residual_configs().front());
  return c.generation == Generation::kPlain ? plain : residual;
}

// Shared by the ranks of a process, as the program does it.
std::shared_ptr<const wan::VaeWeights> weights_of(const Case& c, DType dtype) {
  static std::mutex mutex;
  using Key = std::tuple<Generation, DType, kernels::ConvAlgorithm>;
  static std::map<Key, std::shared_ptr<const wan::VaeWeights>> known;
  const std::lock_guard lock(mutex);
  auto& weights = known[{c.generation, dtype, c.algorithm}];
  if (!weights) {
    weights = std::make_shared<const wan::VaeWeights>(model(c).config, model(c).source,
                                                      wan::VaeUse{wan::VaeParts::kBoth, dtype, c.algorithm});
  }
  return weights;
}

int64_t factor(const Case& c) { return model(c).config.spatial_factor(); }

Tensor input_of(const Case& c) {
  const wan::VaeConfig& config = model(c).config;
  if (c.half == Half::kDecoder) return random_tensor({config.z_dim, c.frames, c.rows, c.width}, 11);
  const int64_t height = factor(c) * c.rows + c.rest;
  return random_tensor({config.video_frames(c.frames), height, factor(c) * c.width, 3}, 12);
}

// The clip [F, H, W, 3], or the moments [2·z, T, h, w]: on rank 0 the whole of it, put together from all ranks' rows.
Tensor run(const Case& c, DType dtype, comm::Communicator& ranks) {
  const wan::VaeConfig& config = model(c).config;
  Stream stream(1);
  const Tensor input = input_of(c);
  HaloRanks halo(ranks);
  const IndexRange rows = rows_of_part(c.rows, ranks.size(), ranks.rank());
  const kernels::RowSplit split{ranks.size() > 1 ? &halo : nullptr, rows};
  if (c.half == Half::kDecoder) {
    wan::VaeDecoder decoder(weights_of(c, dtype));
    Tensor clip(DType::kF32, {config.video_frames(c.frames), factor(c) * c.rows, factor(c) * c.width, 3});
    FrameGather gather(ranks, c.rows, factor(c));
    decoder.decode(
        stream, input,
        [&](int64_t first, const TensorView& frames) {
          EXPECT_EQ(frames.extent(1), factor(c) * rows.size());
          for (int64_t f = 0; f < frames.extent(0); ++f) {
            gather.post(stream, frames.select(0, f),
                        ranks.rank() == 0 ? clip.view().select(0, first + f) : TensorView{});
          }
        },
        {}, split);
    gather.wait();
    return clip;
  }
  wan::VaeEncoder encoder(weights_of(c, dtype));
  const Shape whole{2 * config.z_dim, c.frames, c.rows, c.width};
  Tensor own(DType::kF32, {whole[0], whole[1], rows.size(), whole[3]});
  encoder.encode(stream, input, own, {}, split);
  // By rows first, so that parts lie one after the other.
  Tensor mine(DType::kF32, {rows.size(), whole[3], whole[0], whole[1]});
  copy(stream, mine, own.view().permute({2, 3, 0, 1}));
  Tensor all(DType::kF32, {whole[2], whole[3], whole[0], whole[1]}), moments(DType::kF32, whole);
  FrameGather gather(ranks, c.rows, 1);
  const auto flat = [](const Tensor& x) { return x.view().reshape({x.extent(0), x.size() / x.extent(0), 1}); };
  gather.post(stream, flat(mine), ranks.rank() == 0 ? flat(all) : TensorView{});
  gather.wait();
  copy(stream, moments, all.view().permute({2, 3, 0, 1}));
  return moments;
}

struct Reference {
  Tensor exact;              // F64
  double float32_floor = 0;  // largest error of the same formulas in float32
  Tensor float32, bf16;      // of one rank
  double bf16_error = 0;     // relative L2
};

// Computed once a process.
const Reference& reference(const Case& c) {
  static std::mutex mutex;
  static std::map<std::string, Reference> known;
  const std::lock_guard lock(mutex);
  Reference& r = known[c.name];
  if (r.exact) return r;
  const Tensor input = input_of(c);
  const wan::VaeConfig& config = model(c).config;
  const auto& source = model(c).source;
  const bool decodes = c.half == Half::kDecoder;
  r.exact = decodes ? wan::reference_decode<double>(config, source, input)
                    : wan::reference_encode<double>(config, source, input);
  const Tensor single = decodes ? wan::reference_decode<float>(config, source, input)
                                : wan::reference_encode<float>(config, source, input);
  r.float32_floor = difference(single, r.exact).max_abs;
  comm::run_ranks(1, [&](comm::Communicator& alone) {
    r.float32 = run(c, DType::kF32, alone);
    r.bf16 = run(c, DType::kBF16, alone);
  });
  r.bf16_error = difference(r.bf16, r.exact).relative_l2;
  return r;
}

// One rank's float32 may be four times as far from the exact values as the plain formulas in float32 (vae_test.cpp says
// why); two that sum in different orders may be twice that apart.
double float32_bound(const Reference& r) { return 2 * 4 * r.float32_floor; }

// Where a sum has another order bf16 rounds elsewhere, and the result is another sample of bf16's own error: 1.5 times
// what one rank's is off, as for the ranks of the denoising. Two such samples differ by the root of the sum of squares.
constexpr double kBf16Factor = 1.5;

double worst(const Tensor& ours, const Tensor& one) {
  const double d = difference(ours, one).max_abs;
  return std::isfinite(d) ? d : INFINITY;
}

void matches_one(const Case& c, comm::Communicator& ranks) {
  const Reference& r = reference(c);
  const Tensor float32 = run(c, DType::kF32, ranks), bf16 = run(c, DType::kBF16, ranks);
  if (ranks.rank() != 0) return;
  EXPECT_LE(worst(float32, r.float32), float32_bound(r));
  EXPECT_LE(difference(float32, r.exact).max_abs, 4 * r.float32_floor);
  EXPECT_LE(difference(bf16, r.exact).relative_l2, kBf16Factor * r.bf16_error);
  EXPECT_LE(difference(bf16, r.bf16).relative_l2, std::hypot(1, kBf16Factor) * r.bf16_error);
  EXPECT_GT(difference(float32, r.exact).reference_max, 0.1);
  EXPECT_GT(r.bf16_error, 1e-4);  // or it was float32
  EXPECT_LT(r.bf16_error, 0.1);
  fmt::print(
      "{} n={}: float32 {:.2g} off one rank (bound {:.2g}); bf16 {:.2g} off one rank, {:.2g} off exact (one rank: "
      "{:.2g})\n",
      c.name, ranks.size(), worst(float32, r.float32), float32_bound(r), difference(bf16, r.bf16).relative_l2,
      difference(bf16, r.exact).relative_l2, r.bf16_error);
}

// One byte of one received piece is wrong: rank 0's result must leave its bound.
void sees_a_flipped_byte(const Case& c, comm::Communicator& ranks) {
  const int others = ranks.size() - 1;
  struct Place {
    const char* operation;
    int rank, index;  // who receives it, and as which piece
  };
  const Place places[] = {{HaloRanks::kHaloRows, others, 0},
                          {HaloRanks::kHaloRows, 0, 1},
                          {HaloRanks::kHaloRows, others / 2, 7},
                          {HaloRanks::kGatherRows, others, others},  // after the ranges that all ranks say first
                          {FrameGather::kFrameRows, 0, 0}};
  for (const Place& place : places) {
    SCOPED_TRACE(fmt::format("{}, piece {} of rank {}", place.operation, place.index, place.rank));
    comm::FaultyCommunicator faulty(ranks, ranks.rank() == place.rank ? place.operation : "", place.index);
    const Tensor ours = run(c, DType::kF32, faulty);
    EXPECT_EQ(ranks.all_reduce_max(faulty.flipped() ? 1 : 0), 1);
    if (ranks.rank() == 0) {
      EXPECT_GT(worst(ours, reference(c).float32), float32_bound(reference(c)));
    }
  }
}

const bool kRegistered = [] {
  for (const Case& c : kCases) {
    comm::register_rank_test("VaeRanksMatchOne", c.name, {1, 2, 3, 4, 7}, __FILE__, __LINE__,
                             [&c](comm::Communicator& ranks) { matches_one(c, ranks); });
    comm::register_rank_test("VaeRanksSeeAFlippedByte", c.name, {2, 3, 4, 7}, __FILE__, __LINE__,
                             [&c](comm::Communicator& ranks) { sees_a_flipped_byte(c, ranks); });
  }
  return true;
}();

}  // namespace
}  // namespace zoetrope
