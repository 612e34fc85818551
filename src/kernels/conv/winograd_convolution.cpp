#include "kernels/conv/winograd_convolution.h"

#include <algorithm>
#include <array>

#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kPoints = kWinogradPoints, kTaps = 3, kFilter = kTaps * kTaps;
constexpr int64_t kLine = 64;  // of the cache, in bytes
constexpr size_t kAlignment = 64;
constexpr int64_t kTransformGrain = 64;  // input channels of a frame whose weights a thread transforms at a time

// The 16 points lie an odd number of cache lines apart: written or read together they would else share few sets of the
// L1 cache.
int64_t point_bytes(int64_t bytes) { return (ceil_div(bytes, kLine) | 1) * kLine; }

// An item is a strip of one row of tiles, whose transformed inputs stay in the L2 cache while one block of weights
// after the other is multiplied by them: 256 kB to 1 MB are the same within 2 % (96 and 192 channels, Zen 4).
// Multiplied frame by frame, with wider strips for the same memory, they are 3 to 10 % slower.
constexpr int64_t kInputBytes = 512 << 10;
// But every item reads all weights, in bf16 64 / tiles bytes a cycle, and from 384 channels on they come from the L3
// cache or from memory, which many cores share. So strips are as wide as this, even if inputs then leave the L2 cache:
// 32 tiles instead of 8 are as fast with 384 channels, 5 % faster with 1 024 (two cores).
constexpr int64_t kWantedTiles = 32, kMostInputBytes = 2 << 20;

// Whether weights are stored as they are, and transformed by each call.
bool keeps_taps(const FrameConvProblem& p, const DirectKernels& kernels) {
  return kernels.pair == 1 && p.dtype == DType::kBF16;
}
DType stored_dtype(const FrameConvProblem& p, const DirectKernels& kernels) {
  return keeps_taps(p, kernels) && !p.bf16_weights ? DType::kF32 : p.dtype;
}

// G·w·Gᵀ of 3×3 taps.
std::array<double, 16> transformed(const float* taps) {
  const auto axis = [](double a, double b, double c) {
    return std::array<double, 4>{a, (a + b + c) / 2, (a - b + c) / 2, c};
  };
  std::array<std::array<double, 4>, 3> columns{};
  for (size_t j = 0; j < 3; ++j) columns[j] = axis(taps[j], taps[3 + j], taps[6 + j]);
  std::array<double, 16> points{};
  for (size_t i = 0; i < 4; ++i)
    std::copy_n(axis(columns[0][i], columns[1][i], columns[2][i]).begin(), 4, points.begin() + 4 * i);
  return points;
}

}  // namespace

Refusal WinogradConvolution::refusal(const FrameConvProblem& p, const DirectKernels& kernels) {
  if (kernels.winograd_output == nullptr) return "has no transforms";
  if (p.kernel != std::array<int64_t, 2>{kTaps, kTaps} || p.stride != 1) return "is not 3×3 of stride 1";
  if (kernels.pair == 2 && p.dtype != DType::kBF16) return "multiplies bf16 only";
  return {};
}

int64_t WinogradConvolution::weight_bytes(const FrameConvProblem& p, const DirectKernels& kernels) {
  const int64_t values = keeps_taps(p, kernels) ? kFilter : kPoints;
  return round_up(p.out_channels, kernels.lanes) * values * p.frames * p.in_channels *
         static_cast<int64_t>(dtype_size(stored_dtype(p, kernels)));
}

WinogradConvolution::WinogradConvolution(const FrameConvProblem& problem, const DirectKernels& kernels,
                                         const TensorView& bias)
    : problem_(problem), kernels_(kernels), epilogue_(problem, kernels, bias) {
  element_ = static_cast<int64_t>(kernels.pair == 2 ? sizeof(BFloat16) : sizeof(float));
  input_ = static_cast<int64_t>(dtype_size(problem.dtype));
  const int64_t widest = int64_t{kernels.vectors} * kernels.lanes;
  for (int64_t column = 0; column < epilogue_.columns(); column += widest) {
    const int64_t width = std::min(widest, epilogue_.columns() - column);
    blocks_.push_back({column, static_cast<int>(width / kernels.lanes), column * kPoints * terms()});
  }
  const int64_t tile = kPoints * terms() * element_;
  most_tiles_ = std::max(kInputBytes / tile, std::min(kWantedTiles, kMostInputBytes / tile));
  // With few input channels sums and outputs take more than inputs, and all of it is a thread's scratch.
  const int64_t floats = kPoints * widest + 2 * 2 * epilogue_.columns();
  most_tiles_ = std::min(most_tiles_, kConvScratch / (tile + floats * int64_t{sizeof(float)}));
  most_tiles_ = std::max<int64_t>(1, most_tiles_ / kernels.pixels) * kernels.pixels;
}

// The block's weights from those of output channels `first` and on.
template <typename Element>
void WinogradConvolution::pack_block(const TensorView& weight, int64_t first, const Block& block, Element* to) const {
  const FrameConvProblem& p = problem_;
  const int64_t pair = kernels_.pair;
  const int64_t width = int64_t{block.vectors} * kernels_.lanes, point = terms() * width;
  const int64_t outs = std::min(width, p.out_channels - block.column);
  std::fill_n(to, kPoints * point, Element{});
  for (int64_t c = 0; c < p.in_channels; ++c) {
    for (int64_t frame = 0; frame < p.frames; ++frame) {
      const int64_t k = frame * p.in_channels + c;
      for (int64_t o = 0; o < outs; ++o) {
        const int64_t out = block.column - first + o;
        const float* taps = weight.data<float>() + ((out * p.in_channels + c) * p.frames + frame) * kFilter;
        const std::array<double, 16> points = transformed(taps);
        Element* at = to + (k / pair * width + o) * pair + k % pair;
        for (int64_t i = 0; i < kPoints; ++i)
          at[i * point] = from_float<Element>(static_cast<float>(points[static_cast<size_t>(i)]));
      }
    }
  }
}

int64_t WinogradConvolution::taps_of(const Block& block) const { return block.column * kFilter * terms(); }

template <typename Element>
void WinogradConvolution::pack_taps(const TensorView& weight, int64_t first, const Block& block, Element* to) const {
  const FrameConvProblem& p = problem_;
  const int64_t width = int64_t{block.vectors} * kernels_.lanes;
  const int64_t outs = std::min(width, p.out_channels - block.column);
  std::fill_n(to, kFilter * terms() * width, Element{});
  for (int64_t o = 0; o < outs; ++o) {
    const float* from = weight.data<float>() + (block.column - first + o) * terms() * kFilter;
    for (int64_t c = 0; c < p.in_channels; ++c)
      for (int64_t frame = 0; frame < p.frames; ++frame, from += kFilter)
        for (int64_t tap = 0; tap < kFilter; ++tap)
          to[((frame * p.in_channels + c) * kFilter + tap) * width + o] = from_float<Element>(from[tap]);
  }
}

void WinogradConvolution::pack(const TensorView& weight, int64_t first, std::byte* packed) const {
  const auto pack_as = [&]<typename Element>(Element* to) {
    for (const Block& block : blocks_) {
      if (block.column < first || block.column >= first + weight.extent(0)) continue;
      if (keeps_taps(problem_, kernels_)) pack_taps(weight, first, block, to + taps_of(block));
      else pack_block(weight, first, block, to + block.weights);
    }
  };
  if (stored_dtype(problem_, kernels_) == DType::kBF16) pack_as(reinterpret_cast<BFloat16*>(packed));
  else pack_as(reinterpret_cast<float*>(packed));
}

// As tiles read them.
const std::byte* WinogradConvolution::point_weights(Stream& stream) const {
  if (!keeps_taps(problem_, kernels_)) return packed_;
  const DType stored = stored_dtype(problem_, kernels_);
  const auto transform = stored == DType::kBF16 ? kernels_.winograd_weights_bf16 : kernels_.winograd_weights_f32;
  const auto size = static_cast<int64_t>(dtype_size(stored));
  auto* points = static_cast<float*>(
      stream.scratch().allocate(static_cast<size_t>(epilogue_.columns() * kPoints * terms()) * sizeof(float)));
  stream.team().parallel_for(std::ssize(blocks_) * terms(), kTransformGrain, [&](IndexRange range, int) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const Block& block = blocks_[static_cast<size_t>(i / terms())];
      const int64_t k = i % terms(), width = int64_t{block.vectors} * kernels_.lanes;
      WinogradWeightCall call{};
      call.taps = packed_ + (taps_of(block) + k * kFilter * width) * size;
      call.columns = width;
      call.points = points + block.weights + k * width;
      call.point_stride = terms() * width;
      transform(call);
    }
  });
  return reinterpret_cast<const std::byte*>(points);
}

struct WinogradConvolution::Item {
  int64_t row;       // of the first of two rows of outputs; −1 where the picture before has it
  IndexRange tiles;  // columns of tiles
};

struct WinogradConvolution::Plan {
  std::span<const TensorView> inputs;
  const FrameConvOutput& out;
  const float* gamma = nullptr;
  const std::byte* weights = nullptr;  // as tiles read them
  int64_t first_frame = 0;             // those before are empty
  int64_t height = 0, width = 0;
  int64_t odd = 0;                                // the first row of outputs is the second of its tiles
  int64_t tile_rows = 0, strips = 0, groups = 0;  // groups of as many tiles as a register tile has pixels
  int64_t tile_stride = 0, point_stride = 0;      // of transformed inputs, elements
  int64_t sums_stride = 0;                        // of points of sums, floats
  int64_t sums = 0, outputs = 0, scratch = 0;     // offsets and the end, bytes
};

WinogradConvolution::Plan WinogradConvolution::plan(std::span<const TensorView> inputs,
                                                    const FrameConvOutput& out) const {
  Plan plan{inputs, out};
  while (!inputs[static_cast<size_t>(plan.first_frame)]) ++plan.first_frame;
  const TensorView& any = out.raw ? out.raw : out.normed;
  plan.height = any.extent(0);
  plan.width = any.extent(1);
  plan.odd = out.first_row % 2;
  plan.tile_rows = ceil_div(plan.height + plan.odd, 2);
  plan.groups = ceil_div(ceil_div(plan.width, 2), kernels_.pixels);
  plan.strips = ceil_div(plan.groups * kernels_.pixels, most_tiles_);
  const int64_t tiles = ceil_div(plan.groups, plan.strips) * kernels_.pixels;
  const int64_t widest = int64_t{kernels_.vectors} * kernels_.lanes, floats = sizeof(float);
  plan.tile_stride = (problem_.frames - plan.first_frame) * problem_.in_channels;
  plan.point_stride = point_bytes(tiles * plan.tile_stride * element_) / element_;
  plan.sums_stride = point_bytes(tiles * widest * floats) / floats;
  plan.sums = round_up(kPoints * plan.point_stride * element_, kAlignment);
  plan.outputs = plan.sums + kPoints * plan.sums_stride * floats;
  plan.scratch = round_up(plan.outputs + 2 * 2 * tiles * epilogue_.columns() * floats, kAlignment);
  return plan;
}

void WinogradConvolution::run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const {
  Plan call = plan(inputs, out);
  const Arena::Scope scope(stream.scratch());
  call.weights = point_weights(stream);
  call.gamma = epilogue_.gamma(stream, out);
  const int64_t items = call.tile_rows * call.strips;
  const auto threads = static_cast<int>(std::min<int64_t>(stream.team().size(), items));
  auto* scratch = static_cast<std::byte*>(stream.scratch().allocate(static_cast<size_t>(threads * call.scratch)));
  std::atomic<int64_t> next{0};
  auto work = [&](int thread) {
    if (thread >= threads) return;
    for (int64_t index = next++; index < items; index = next++)
      run_item(call, item(call, index), scratch + thread * call.scratch);
  };
  if (threads == 1) work(0);
  else stream.team().run(work);
}

WinogradConvolution::Item WinogradConvolution::item(const Plan& plan, int64_t index) const {
  const IndexRange groups = split_range(plan.groups, plan.strips, index % plan.strips);
  return {2 * (index / plan.strips) - plan.odd,
          {groups.begin * kernels_.pixels, std::min(groups.end * kernels_.pixels, ceil_div(plan.width, 2))}};
}

void WinogradConvolution::run_item(const Plan& plan, const Item& item, std::byte* scratch) const {
  for (int64_t frame = plan.first_frame; frame < problem_.frames; ++frame)
    transform_inputs(plan, item, frame, scratch + (frame - plan.first_frame) * problem_.in_channels * element_);
  multiply(plan, item, scratch);
  const int64_t columns = 2 * item.tiles.begin;
  auto* sums = reinterpret_cast<float*>(scratch + plan.outputs);
  for (int64_t i = 0; i < 2; ++i, sums += 2 * item.tiles.size() * epilogue_.columns()) {
    const int64_t row = item.row + i;
    if (row < 0 || row >= plan.height) continue;
    epilogue_.finish(plan.out, plan.gamma, row, columns, std::min(2 * item.tiles.size(), plan.width - columns), sums);
  }
}

void WinogradConvolution::transform_inputs(const Plan& plan, const Item& item, int64_t frame, std::byte* to) const {
  const TensorView& x = plan.inputs[static_cast<size_t>(frame)];
  WinogradInputCall call{};
  // Rows that only outputs beyond the picture read may not exist: any row stands for them.
  const int64_t first = item.row < 0 ? 1 : 0, last = item.row + 1 < plan.height ? 3 : 2;
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t row = problem_.origin[0] + item.row + std::clamp(i, first, last);
    call.rows[i] =
        x.data<std::byte>() + (row * x.stride(0) + (problem_.origin[1] + 2 * item.tiles.begin) * x.stride(1)) * input_;
  }
  call.pixel_stride = problem_.in_channels;
  call.channels = problem_.in_channels;
  call.tiles = item.tiles.size();
  call.last_column = 2 * item.tiles.end <= plan.width;
  call.out = to;
  call.tile_stride = plan.tile_stride;
  call.point_stride = plan.point_stride;
  (problem_.dtype == DType::kBF16 ? kernels_.winograd_input_bf16 : kernels_.winograd_input_f32)(call);
}

void WinogradConvolution::multiply(const Plan& plan, const Item& item, std::byte* scratch) const {
  auto* sums = reinterpret_cast<float*>(scratch + plan.sums);
  const int64_t tiles = item.tiles.size();
  TileCall call{};
  call.run_count = 1;
  call.run_length = plan.tile_stride;
  call.pixel_stride = plan.tile_stride;
  call.accumulate = false;
  WinogradOutputCall back{};
  back.sums = sums;
  back.point_stride = plan.sums_stride;
  back.tiles = tiles;
  back.pixel_stride = epilogue_.columns();
  for (const Block& block : blocks_) {
    const int64_t width = int64_t{block.vectors} * kernels_.lanes;
    call.acc_stride = width;
    for (int64_t point = 0; point < kPoints; ++point) {
      const int64_t term = point * terms() + plan.first_frame * problem_.in_channels;
      call.weights = plan.weights + (block.weights + term * width) * element_;
      for (int64_t tile = 0; tile < tiles; tile += kernels_.pixels) {
        call.runs[0] = scratch + (point * plan.point_stride + tile * plan.tile_stride) * element_;
        call.acc = sums + point * plan.sums_stride + tile * width;
        kernels_.tile[std::min<int64_t>(kernels_.pixels, tiles - tile) - 1][block.vectors - 1](call);
      }
    }
    back.tile_stride = width;
    back.channels = width;
    auto* rows = reinterpret_cast<float*>(scratch + plan.outputs) + block.column;
    for (int64_t i = 0; i < 2; ++i, rows += 2 * tiles * epilogue_.columns()) {
      const int64_t row = item.row + i;
      back.rows[i] = row < 0 || row >= plan.height ? nullptr : rows;
    }
    kernels_.winograd_output(back);
  }
}

}  // namespace zoetrope::kernels
