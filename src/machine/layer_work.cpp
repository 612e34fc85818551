#include "machine/layer_work.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu_features.h"
#include "kernels/flash_attention/tile_search.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"

namespace zoetrope::machine {
namespace {

constexpr int64_t kD = kLayerWidth, kF = kLayerHidden;
constexpr int64_t kHeads = kD / kLayerHeadDim;
// Stride of an operand's rows, as in the transformer: not a power of two.
constexpr int64_t kPadding = 16;
constexpr int kGemms = 4;     // of a layer
constexpr int64_t kTaps = 3;  // of a convolution, along each axis
// Channels and columns of the VAE's convolutions.
constexpr int64_t kConvolutions[][2] = {{192, 416}, {96, 832}};

// Arbitrary numbers in [-scale, scale), without zeros and denormals.
Tensor filled(ThreadTeam& team, DType dtype, const Shape& shape, float scale = 1) {
  constexpr int64_t kGrain = 1 << 16;
  Tensor tensor = Tensor::uninitialized(dtype, shape);
  team.parallel_for(shape.size(), kGrain, [&](IndexRange range, int) {
    for (int64_t i = range.begin; i < range.end; ++i) {
      const float value = scale * (static_cast<float>((i * 2654435761 >> 7) % 1024) / 512 - 1);
      if (dtype == DType::kF32) {
        tensor.data<float>()[i] = value;
      } else {
        uint32_t bits = 0;
        std::memcpy(&bits, &value, sizeof bits);
        tensor.data<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16);  // truncated: any bf16 will do
      }
    }
  });
  return tensor;
}

TensorView rows_of(const Tensor& padded, int64_t rows, int64_t width) {
  return {padded.view().raw(), padded.dtype(), {rows, width}, {width + kPadding, 1}};
}

double convolution_flop(int64_t channels, int64_t columns, int64_t rows) {
  return 2.0 * std::pow(kTaps, 3) * static_cast<double>(channels * channels * rows * columns);
}

}  // namespace

LayerWeights::LayerWeights(ThreadTeam& team, DType packed) : dtype_(packed == DType::kI8 ? DType::kBF16 : packed) {
  constexpr int64_t kSizes[kMatrices][2] = {{3 * kD, kD}, {kD, kD}, {kF, kD}, {kD, kF}};
  for (size_t i = 0; i < kMatrices; ++i) {
    kernels::PackedMatrix& matrix = matrices_[i];
    matrix.n = kSizes[i][0];
    matrix.k = kSizes[i][1];
    matrix.dtype = packed;
    matrix.layout = kernels::packed_layout(packed);
    const Tensor stored = filled(team, dtype_, {matrix.n, matrix.k}, 0.02F);
    packed_[i] = Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(kernels::packed_bytes(matrix))});
    const TensorView view = stored;
    kernels::pack({&view, 1}, matrix, packed_[i].data<std::byte>());
    matrix.data = packed_[i].data<std::byte>();
  }
}

LayerGemms::LayerGemms(Stream& stream, const LayerWeights& weights, int64_t rows)
    : stream_(stream), weights_(weights), rows_(rows) {
  const DType operand = kernels::operand_dtype(weights.qkv());
  x_ = filled(stream.team(), operand, {rows * (kD + kPadding)});
  hidden_ = filled(stream.team(), operand, {rows * (kF + kPadding)});
  wide_ = Tensor(weights.dtype(), {rows, 3 * kD});
  stream_rows_ = Tensor(weights.dtype(), {rows, kD});
  bias_ = Tensor(weights.dtype(), {kF});
  gate_ = filled(stream.team(), DType::kF32, {kD});
}

double LayerGemms::flop(int64_t rows) { return 2.0 * static_cast<double>(rows * kD * (4 * kD + 2 * kF)); }

double LayerGemms::all() {
  double sum = 0;
  for (int i = 0; i < kGemms; ++i) sum += next();
  return sum;
}

double LayerGemms::next() {
  kernels::PackedGemm call;
  const TensorView x = rows_of(x_, rows_, kD), hidden = rows_of(hidden_, rows_, kF);
  switch (turn_++ % kGemms) {
    case 0:
      return run(call, x, weights_.qkv(), wide_);
    case 1:
      call.residual = stream_rows_;
      call.gate = gate_;
      return run(call, x, weights_.out(), stream_rows_);
    case 2:
      call.activation = kernels::Activation::kGeluTanh;
      call.round_to_bf16 = weights_.dtype() == DType::kBF16 && hidden.dtype() == DType::kF32;
      return run(call, x, weights_.up(), hidden);
    default:
      call.residual = stream_rows_;
      call.gate = gate_;
      return run(call, hidden, weights_.down(), stream_rows_);
  }
}

double LayerGemms::run(kernels::PackedGemm& call, const TensorView& x, const kernels::PackedMatrix& w,
                       const TensorView& out) {
  const TensorView& bias = bias_;
  call.x = x;
  call.w = w;
  call.bias = bias.slice(0, 0, std::min(w.n, kF));
  if (w.n > kF) call.bias = {};
  call.out = out;
  kernels::packed_gemm(stream_, call);
  return 2.0 * static_cast<double>(rows_) * static_cast<double>(w.n * w.k);
}

TokenPasses::TokenPasses(Stream& stream, const LayerWeights& weights)
    : stream_(stream),
      dtype_(weights.dtype()),
      operand_dtype_(kernels::operand_dtype(weights.qkv())),
      rope_(kernels::make_rope_table(kLayerHeadDim, 1, kSide, kTokens / kSide, {0, kTokens})) {
  ThreadTeam& team = stream.team();
  x_ = filled(team, dtype_, {1, kTokens, kD});
  for (Tensor* slots : {&q_, &k_, &v_}) *slots = Tensor(dtype_, {1, kTokens, kHeads, kLayerHeadDim});
  qkv_ = filled(team, dtype_, {kChunk, 3 * kD});
  operand_ = filled(team, operand_dtype_, {kChunk * (kD + kPadding)});
  weight_ = filled(team, dtype_, {kD});
  scale_ = filled(team, DType::kF32, {1, 1, kD}, 0.1F);
  affine_ = filled(team, DType::kF32, {kD});
}

double TokenPasses::next(int64_t rows) {
  if (at_ + rows > kTokens) at_ = 0;
  const TensorView x = x_.view().slice(1, at_, at_ + rows);
  norm(x, rows, true);
  turn(0, rows, true, q_);
  turn(kD, rows, true, k_);
  turn(2 * kD, rows, false, v_);
  convert(x, rows);
  norm(x, rows, false);
  turn(0, rows, true, q_);
  convert(x, rows);
  norm(x, rows, true);
  at_ += rows;
  return static_cast<double>(rows);
}

TensorView TokenPasses::operand(int64_t rows) const {
  return {operand_.view().raw(), operand_dtype_, {1, rows, kD}, {0, kD + kPadding, 1}};
}

void TokenPasses::norm(const TensorView& x, int64_t rows, bool modulated) {
  kernels::LayerNorm args;
  args.x = x;
  if (modulated) args.scale = args.shift = scale_;
  else args.weight = args.bias = affine_;
  args.out = operand(rows);
  args.round_to_bf16 = dtype_ == DType::kBF16;
  kernels::layer_norm(stream_, args);
}

// Copies columns of q, k or v to attention's operands: with norm and RoPE, or unchanged.
void TokenPasses::turn(int64_t column, int64_t rows, bool normed, const Tensor& to) {
  const TensorView from = qkv_.view().slice(0, 0, rows).slice(1, column, column + kD);
  const TensorView sample(from.raw(), dtype_, {1, rows, kHeads, kLayerHeadDim}, {0, from.stride(0), kLayerHeadDim, 1});
  const HeadSlot slot{{0, kHeads}, to.view().slice(1, at_, at_ + rows)};
  kernels::RmsNormRope args;
  args.x = sample;
  if (normed) {
    args.weight = weight_;
    args.cos = rope_.cos.view().slice(0, at_, at_ + rows);
    args.sin = rope_.sin.view().slice(0, at_, at_ + rows);
  }
  args.slots = {&slot, 1};
  kernels::rms_norm_rope(stream_, args);
}

void TokenPasses::convert(const TensorView& x, int64_t rows) {
  if (dtype_ != operand_dtype_) kernels::convert(stream_, x, operand(rows));
}

Convolutions::Convolutions(Stream& stream, DType dtype, int64_t rows) : stream_(stream) {
  ThreadTeam& team = stream.team();
  for (const auto& [channels, columns] : kConvolutions) {
    kernels::FrameConvProblem problem;
    problem.in_channels = problem.out_channels = channels;
    problem.frames = kTaps;
    problem.kernel = {kTaps, kTaps};
    problem.dtype = dtype;
    const Tensor weight = filled(team, DType::kF32, {channels, channels, kTaps, kTaps, kTaps}, 0.02F);
    const Tensor bias(DType::kF32, {channels});
    Layer& layer = layers_.emplace_back();
    layer.convolution = std::make_unique<kernels::FrameConvolution>(problem, weight, bias);
    layer.input = filled(team, dtype, {rows + kTaps - 1, columns + kTaps - 1, channels});
    layer.output = Tensor(dtype, {rows, columns, channels});
    layer.gamma = filled(team, DType::kF32, {channels});
    layer.flop = convolution_flop(channels, columns, rows);
  }
}

double Convolutions::flop(int64_t rows) {
  double sum = 0;
  for (const auto& [channels, columns] : kConvolutions) sum += convolution_flop(channels, columns, rows);
  return sum;
}

double Convolutions::all() {
  double sum = 0;
  for (size_t i = 0; i < layers_.size(); ++i) sum += next();
  return sum;
}

double Convolutions::next() {
  const Layer& layer = layers_[turn_++ % layers_.size()];
  const std::array<TensorView, kTaps> inputs{layer.input, layer.input, layer.input};
  kernels::FrameConvOutput out;
  out.normed = layer.output;
  out.gamma = layer.gamma;
  out.silu = true;
  layer.convolution->run(stream_, inputs, out);
  return layer.flop;
}

double AttentionWork::flop(int threads, int64_t queries, int64_t keys) {
  return 4.0 * static_cast<double>(queries * keys) * static_cast<double>(kLayerHeadDim * std::max(2, threads));
}

AttentionWork::AttentionWork(Stream& stream, DType dtype, int64_t queries, int64_t keys,
                             const AttentionVariant& variant)
    : stream_(stream),
      heads_(std::max(2, stream.team().size())),
      flop_(flop(stream.team().size(), queries, keys)),
      kernel_([&] {
        kernels::FlashProblem problem;
        problem.query_tokens = queries;
        problem.key_tokens = keys;
        problem.heads = heads_;
        problem.head_dim = kLayerHeadDim;
        problem.dtype = dtype;
        problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(kLayerHeadDim)));
        problem.softmax = variant.softmax;
        problem.int8 = variant.int8;
        const kernels::TileCache cache(kernels::TileCache::default_file());
        if (variant.tile_rows == 0) problem.tiles = tuned_tiles(problem, stream, cache, kernels::WhenUnknown::kTable);
        problem.tiles.query = std::max(problem.tiles.query, variant.tile_rows);
        return problem;
      }()) {
  // Scores with the spread of normal deviates, so that the running maximum changes as often.
  constexpr float kUnitVariance = 1.732F;
  const auto tensor = [&](int64_t tokens) {
    return filled(stream.team(), dtype, {1, tokens, heads_, kLayerHeadDim}, kUnitVariance);
  };
  q_ = tensor(queries);
  k_ = tensor(keys);
  v_ = tensor(keys);
  o_ = Tensor(dtype, {1, queries, heads_, kLayerHeadDim});
}

kernels::KeyBlock AttentionWork::block() const {
  kernels::KeyBlock block;
  block.k = k_;
  block.v = v_;
  return block;
}

double AttentionWork::attend() {
  kernel_.attend(stream_, q_, block(), o_);
  return flop_;
}

double AttentionWork::fold(int blocks) {
  if (state_ == nullptr) state_ = kernel_.make_state();
  kernel_.init(stream_, *state_);
  for (int i = 0; i < blocks; ++i) kernel_.accumulate(stream_, *state_, q_, block());
  kernel_.finish(stream_, *state_, o_);
  return flop_ * blocks;
}

StoredMatrices::StoredMatrices(int64_t matrices)
    : matrices_(matrices), file_(::memfd_create("stored matrices", MFD_CLOEXEC)) {
  try {
    if (file_ < 0 || ::ftruncate(file_, static_cast<off_t>(bytes())) != 0)
      fail("cannot allocate {} MB of memory: {}", bytes() >> 20, std::strerror(errno));
    const Mapping written(*this, PROT_READ | PROT_WRITE);
    std::memset(written.memory, 0x3c, bytes());
  } catch (...) {
    if (file_ >= 0) ::close(file_);
    throw;
  }
}

StoredMatrices::~StoredMatrices() { ::close(file_); }

StoredMatrices::Mapping::Mapping(const StoredMatrices& stored, int protection) : bytes(stored.bytes()) {
  void* const mapped = ::mmap(nullptr, bytes, protection, MAP_SHARED, stored.file_, 0);
  if (mapped == MAP_FAILED) fail("{} MB of memory cannot be mapped: {}", bytes >> 20, std::strerror(errno));
  memory = static_cast<std::byte*>(mapped);
}

StoredMatrices::Mapping::~Mapping() { ::munmap(memory, bytes); }

void StoredMatrices::pack(ThreadTeam& team) const {
  kernels::PackedMatrix matrix;
  matrix.n = matrix.k = kSide;
  matrix.dtype = DType::kBF16;
  matrix.layout = kernels::packed_layout(DType::kBF16);
  const size_t packed = kernels::packed_bytes(matrix);
  const Mapping mapped(*this, PROT_READ);
  const Tensor to = Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(packed) * matrices_});
  team.parallel_for(matrices_, 1, [&](IndexRange range, int) {
    for (int64_t m = range.begin; m < range.end; ++m) {
      const TensorView stored(mapped.memory + static_cast<size_t>(m) * kBytes, DType::kBF16, {kSide, kSide});
      kernels::pack({&stored, 1}, matrix, to.data<std::byte>() + static_cast<size_t>(m) * packed);
    }
  });
}

}  // namespace zoetrope::machine
