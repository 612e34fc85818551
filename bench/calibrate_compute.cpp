#include "bench/calibrate_compute.h"

#include <sys/mman.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "base/error.h"
#include "bench/attention_data.h"
#include "device/thread_team.h"
#include "kernels/conv/frame_conv.h"
#include "kernels/flash_attention/tile_search.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/rope/rope.h"

namespace zoetrope::bench {
namespace {

constexpr int64_t kD = kCalibratedWidth, kF = kCalibratedHidden;
constexpr int64_t kHeads = kD / kCalibratedHeadDim;
// Columns between the rows of an operand, as the transformer has them: a stride that is no power of two.
constexpr int64_t kPadding = 16;

// Up to what a chunk of the transformer has: more rows are more chunks (models/wan/transformer/workspace.h).
constexpr int64_t kGemmRows[] = {64, 256, 1024};
constexpr int64_t kShorter[] = {64, 256, 1024};  // than kLongKeys
constexpr int64_t kTileRows[] = {64, 128, 512};  // 256 is the table's
constexpr int64_t kHostReadMatrices = 16;        // of all readers of a host

// Cheap numbers in [-1, 1): what they are does not matter, that they are no zeros and no denormals does.
float number(int64_t index) { return static_cast<float>((index * 2654435761 >> 7) % 1024) / 512 - 1; }

Tensor filled(DType dtype, const Shape& shape, float scale = 1) {
  Tensor tensor = Tensor::uninitialized(dtype, shape);
  for (int64_t i = 0; i < shape.size(); ++i) {
    const float value = scale * number(i);
    if (dtype == DType::kF32) {
      tensor.data<float>()[i] = value;
    } else {
      uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      tensor.data<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16);  // cut, not rounded: any bf16 will do
    }
  }
  return tensor;
}

TensorView rows_of(const Tensor& padded, int64_t rows, int64_t width) {
  return {padded.view().raw(), padded.dtype(), {rows, width}, {width + kPadding, 1}};
}

// The products of a layer over `rows` rows, one after another as the transformer calls them.
class Products {
 public:
  Products(CalibrationRank& rank, const CalibrationWeights& weights, int64_t rows)
      : stream_(rank.stream()), weights_(weights), rows_(rows) {
    const DType operand = kernels::operand_dtype(weights.qkv());
    x_ = filled(operand, {rows * (kD + kPadding)});
    hidden_ = filled(operand, {rows * (kF + kPadding)});
    wide_ = Tensor(weights.dtype(), {rows, 3 * kD});
    stream_rows_ = Tensor(weights.dtype(), {rows, kD});
    bias_ = Tensor(weights.dtype(), {kF});
    gate_ = filled(DType::kF32, {kD});
  }

  // The next product; its FLOP.
  double next() {
    kernels::PackedGemm call;
    const TensorView x = rows_of(x_, rows_, kD), hidden = rows_of(hidden_, rows_, kF);
    switch (turn_++ % 4) {
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

 private:
  double run(kernels::PackedGemm& call, const TensorView& x, const kernels::PackedMatrix& w, const TensorView& out) {
    const TensorView& bias = bias_;
    call.x = x;
    call.w = w;
    call.bias = bias.slice(0, 0, std::min(w.n, kF));
    if (w.n > kF) call.bias = {};
    call.out = out;
    kernels::packed_gemm(stream_, call);
    return 2.0 * static_cast<double>(rows_) * static_cast<double>(w.n * w.k);
  }

  Stream& stream_;
  const CalibrationWeights& weights_;
  int64_t rows_;
  int turn_ = 0;
  Tensor x_, hidden_, wide_, stream_rows_, bias_, gate_;
};

// What a layer does with a token beside products and attention: norms, RoPE, modulation, and what makes operands of
// attention's results where those are of another dtype. Over a sequence, so that rows come from where they do in a run.
class TokenPasses {
 public:
  TokenPasses(CalibrationRank& rank, const CalibrationWeights& weights)
      : stream_(rank.stream()),
        dtype_(weights.dtype()),
        operand_dtype_(kernels::operand_dtype(weights.qkv())),
        rope_(kernels::make_rope_table(kCalibratedHeadDim, 1, kSide, kTokens / kSide, {0, kTokens})) {
    x_ = filled(dtype_, {1, kTokens, kD});
    for (Tensor* slots : {&q_, &k_, &v_}) *slots = Tensor(dtype_, {1, kTokens, kHeads, kCalibratedHeadDim});
    qkv_ = filled(dtype_, {kChunk, 3 * kD});
    operand_ = filled(operand_dtype_, {kChunk * (kD + kPadding)});
    weight_ = filled(dtype_, {kD});
    scale_ = filled(DType::kF32, {1, 1, kD}, 0.1F);
    affine_ = filled(DType::kF32, {kD});
  }

  static constexpr int64_t kChunk = 1024;

  // A layer of the next `rows` tokens; their number.
  double next(int64_t rows) {
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

 private:
  static constexpr int64_t kTokens = 4096, kSide = 64;

  TensorView operand(int64_t rows) const {
    return {operand_.view().raw(), operand_dtype_, {1, rows, kD}, {0, kD + kPadding, 1}};
  }
  void norm(const TensorView& x, int64_t rows, bool modulated) {
    kernels::LayerNorm args;
    args.x = x;
    if (modulated) args.scale = args.shift = scale_;
    else args.weight = args.bias = affine_;
    args.out = operand(rows);
    args.round_to_bf16 = dtype_ == DType::kBF16;
    kernels::layer_norm(stream_, args);
  }
  // Columns of q, k or v to attention's places: normed and turned, or as they are.
  void turn(int64_t column, int64_t rows, bool normed, const Tensor& to) {
    const TensorView from = qkv_.view().slice(0, 0, rows).slice(1, column, column + kD);
    const TensorView sample(from.raw(), dtype_, {1, rows, kHeads, kCalibratedHeadDim},
                            {0, from.stride(0), kCalibratedHeadDim, 1});
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
  void convert(const TensorView& x, int64_t rows) {
    if (dtype_ != operand_dtype_) kernels::convert(stream_, x, operand(rows));
  }

  Stream& stream_;
  DType dtype_, operand_dtype_;
  kernels::RopeTable rope_;
  Tensor x_, q_, k_, v_, qkv_, operand_, weight_, scale_, affine_;
  int64_t at_ = 0;
};

// 3×3×3 convolutions with the norm and SiLU behind them, of the two widths that most of the VAE's operations are of, on
// strips of a frame as wide as theirs.
class Convolutions {
 public:
  Convolutions(CalibrationRank& rank, DType dtype) : stream_(rank.stream()) {
    constexpr int64_t kSizes[][2] = {{192, 416}, {96, 832}};  // channels, columns
    for (const auto& [channels, columns] : kSizes) {
      kernels::FrameConvProblem problem;
      problem.in_channels = problem.out_channels = channels;
      problem.frames = kTaps;
      problem.kernel = {kTaps, kTaps};
      problem.dtype = dtype;
      const Tensor weight = filled(DType::kF32, {channels, channels, kTaps, kTaps, kTaps}, 0.02F);
      const Tensor bias(DType::kF32, {channels});
      Layer& layer = layers_.emplace_back();
      layer.convolution = std::make_unique<kernels::FrameConvolution>(problem, weight, bias);
      layer.input = filled(dtype, {kRows + kTaps - 1, columns + kTaps - 1, channels});
      layer.output = Tensor(dtype, {kRows, columns, channels});
      layer.gamma = filled(DType::kF32, {channels});
      layer.flop = 2.0 * std::pow(kTaps, 3) * static_cast<double>(channels * channels * kRows * columns);
    }
  }

  double next() {
    const Layer& layer = layers_[turn_++ % layers_.size()];
    const std::array<TensorView, kTaps> inputs{layer.input, layer.input, layer.input};
    kernels::FrameConvOutput out;
    out.normed = layer.output;
    out.gamma = layer.gamma;
    out.silu = true;
    layer.convolution->run(stream_, inputs, out);
    return layer.flop;
  }

 private:
  static constexpr int64_t kTaps = 3, kRows = 12;
  struct Layer {
    std::unique_ptr<kernels::FrameConvolution> convolution;
    Tensor input, output, gamma;
    double flop = 0;
  };
  Stream& stream_;
  std::vector<Layer> layers_;
  size_t turn_ = 0;
};

// Something to be timed beside the peak, and where its fraction goes.
struct Case {
  MeasuredCurve* curve;
  std::string figure, of;  // "gemm", "rows"
  int64_t size;
  std::function<double()> work;
};

// The figures of one dtype. Cases take turns, each between two windows of the peak: clock rates and neighbours change
// within seconds, and what comes then should meet one repeat of every case and not all repeats of one.
class DtypeMeter {
 public:
  DtypeMeter(CalibrationRank& rank, const CalibrationWeights& weights, const ComputeNotes& notes)
      : rank_(rank),
        weights_(weights),
        notes_(notes),
        dtype_(weights.dtype()),
        name_(dtype_ == DType::kBF16 ? "bf16" : "float32"),
        convolutions_(rank, dtype_) {}

  DtypeFigures measure() {
    add_cases();
    take_turns();
    passes();
    fold();
    return figures_;
  }

 private:
  void say(const std::string& what) const { notes_.say(name_ + ": " + what); }
  void found(const std::string& figure, const std::string& at, const std::string& value, double spread) const {
    notes_.found(name_ + "." + figure, at, value, spread);
  }

  void add_cases() {
    for (const int64_t rows : kGemmRows) {
      auto products = std::make_shared<Products>(rank_, weights_, rows);
      cases_.push_back({&figures_.gemm, "gemm", "rows", rows, [products] { return products->next(); }});
    }
    using kernels::Softmax;
    for (const int64_t size : kShorter)
      attend({&figures_.attention, "attention", "queries", size, {}}, size, kLongKeys, Softmax::kOnline);
    attend({&figures_.attention, "attention", "queries", kLongKeys, {}}, kLongKeys, kLongKeys, Softmax::kOnline);
    for (const int64_t size : kShorter)
      attend({&figures_.attention_keys, "attention_keys", "keys", size, {}}, kLongKeys, size, Softmax::kOnline);
    attend({&figures_.fixed_max, "fixed_max_gain", "keys", kLongKeys, {}}, kLongKeys, kLongKeys, Softmax::kFixedMax);
    figures_.kernel = AttentionWork(rank_, dtype_, 1, 1).implementation();
    if (figures_.kernel != "scalar")
      for (const int64_t rows : kTileRows)
        attend({&figures_.tile_rows, "attention", "rows a tile", rows, {}}, kLongKeys, kLongKeys, Softmax::kOnline,
               rows);
    cases_.push_back({&figures_.convolution, "convolution", "taps", 27, [this] { return convolutions_.next(); }});
  }
  void attend(Case one, int64_t queries, int64_t keys, kernels::Softmax softmax, int64_t tile = 0) {
    auto work = std::make_shared<AttentionWork>(rank_, dtype_, queries, keys, softmax, tile);
    one.work = [work] { return work->attend(); };
    cases_.push_back(std::move(one));
  }

  void take_turns() {
    const Isa isa = calibrated_isa(rank_, dtype_);
    figures_.peak_of = isa_name(isa);
    for (const Case& one : cases_) one.work();  // memory touched, code and tables loaded
    std::vector<double> peaks{rank_.peak(isa)};
    std::vector<std::vector<double>> fractions(cases_.size());
    for (int round = 0; round < kRepeats; ++round) {
      say(fmt::format("products, attention, convolution, round {} of {}", round + 1, kRepeats));
      for (size_t i = 0; i < cases_.size(); ++i) {
        const double before = peaks.back(), rate = rank_.rate(cases_[i].work);
        peaks.push_back(rank_.peak(isa));
        fractions[i].push_back(rate / ((before + peaks.back()) / 2));
      }
    }
    figures_.peak = measured(peaks);
    found("peak", figures_.peak_of, fmt::format("{:.1f} GFLOP/s", figures_.peak.value * 1e-9), figures_.peak.spread);
    for (size_t i = 0; i < cases_.size(); ++i) {
      const Case& one = cases_[i];
      const Measured value = measured(fractions[i]);
      one.curve->emplace_back(one.size, value);
      found(one.figure, fmt::format("{} {}", one.size, one.of), fmt::format("{:.1f} %", 100 * value.value),
            value.spread);
    }
    cases_.clear();
  }

  void passes() {
    say("norms and rotations");
    TokenPasses passes(rank_, weights_);
    const auto inverse = [](Measured rate) { return Measured{1 / rate.value, rate.spread}; };
    figures_.token_seconds = inverse(rank_.rates([&] { return passes.next(TokenPasses::kChunk); }));
    found("token_seconds", fmt::format("width {}", kD), fmt::format("{:.3f} us", figures_.token_seconds.value * 1e6),
          figures_.token_seconds.spread);
    AttentionWork one(rank_, dtype_, 1, 1);
    figures_.layer_overhead = inverse(rank_.rates([&] {
      passes.next(1);
      one.attend();  // its own, and that to the text
      one.attend();
      return 1.0;
    }));
    found("layer_overhead", "1 token", fmt::format("{:.1f} us", figures_.layer_overhead.value * 1e6),
          figures_.layer_overhead.spread);
  }

  // Beyond so many single blocks: init, the state's ways through memory, finish. Short blocks show it best.
  void fold() {
    constexpr int64_t kRows = 512;
    constexpr int kBlocks = 4;
    say("folding ring blocks");
    AttentionWork work(rank_, dtype_, kRows, kRows);
    std::vector<double> extra;
    for (int i = 0; i < kRepeats; ++i) {
      const double single = 1 / rank_.rate([&] { return work.attend() > 0 ? 1.0 : 0.0; });
      const double folded = 1 / rank_.rate([&] { return work.fold(kBlocks) > 0 ? 1.0 : 0.0; });
      extra.push_back(folded / kBlocks - single);
    }
    // Where not all repeats show it, it is noise.
    const double seconds = minimum(extra) > 0 ? median(extra) : 0;
    figures_.fold_seconds = seconds / static_cast<double>(kRows * work.heads());
  }

  CalibrationRank& rank_;
  const CalibrationWeights& weights_;
  const ComputeNotes& notes_;
  DType dtype_;
  std::string name_;
  Convolutions convolutions_;
  std::vector<Case> cases_;
  DtypeFigures figures_;
};

}  // namespace

CalibrationWeights::CalibrationWeights(DType dtype) : dtype_(dtype) {
  constexpr int64_t kSizes[kMatrices][2] = {{3 * kD, kD}, {kD, kD}, {kF, kD}, {kD, kF}};
  for (size_t i = 0; i < kMatrices; ++i) {
    kernels::PackedMatrix& matrix = matrices_[i];
    matrix.n = kSizes[i][0];
    matrix.k = kSizes[i][1];
    matrix.dtype = dtype;
    matrix.layout = kernels::packed_layout(dtype);
    const Tensor stored = filled(dtype, {matrix.n, matrix.k}, 0.02F);
    packed_[i] = Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(kernels::packed_bytes(matrix))});
    const TensorView view = stored;
    kernels::pack({&view, 1}, matrix, packed_[i].data<std::byte>());
    matrix.data = packed_[i].data<std::byte>();
  }
}

AttentionWork::AttentionWork(CalibrationRank& rank, DType dtype, int64_t queries, int64_t keys,
                             kernels::Softmax softmax, int64_t tile_rows)
    : stream_(rank.stream()),
      heads_(std::max(2, rank.threads())),
      flop_(4.0 * static_cast<double>(queries * keys) * static_cast<double>(kCalibratedHeadDim * heads_)),
      kernel_([&] {
        kernels::FlashProblem problem;
        problem.query_tokens = queries;
        problem.key_tokens = keys;
        problem.heads = heads_;
        problem.head_dim = kCalibratedHeadDim;
        problem.dtype = dtype;
        problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(kCalibratedHeadDim)));
        problem.softmax = softmax;
        const kernels::TileCache cache(kernels::TileCache::default_file());
        if (tile_rows == 0) problem.tiles = tuned_tiles(problem, rank.stream(), cache, kernels::WhenUnknown::kTable);
        problem.tiles.query = std::max(problem.tiles.query, tile_rows);
        return problem;
      }()) {
  const auto tensor = [&](int64_t tokens) { return Tensor(dtype, {1, tokens, heads_, kCalibratedHeadDim}); };
  q_ = tensor(queries);
  k_ = tensor(keys);
  v_ = tensor(keys);
  o_ = tensor(queries);
  uint64_t seed = 1;
  for (const Tensor* each : {&q_, &k_, &v_}) fill_normal(*each, seed++);
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

Isa calibrated_isa(CalibrationRank& rank, DType dtype) {
  return isa_of_kernel(AttentionWork(rank, dtype, 1, 1).implementation());
}

DtypeFigures measure_dtype(CalibrationRank& rank, const CalibrationWeights& weights, const ComputeNotes& notes) {
  return DtypeMeter(rank, weights, notes).measure();
}

Measured measure_memory(CalibrationRank& rank) {
  constexpr size_t kBytes = size_t{32} << 20;  // of a thread, read, and as many written
  std::vector<double> repeats;
  for (int i = 0; i < kRepeats; ++i) {
    rank.world().barrier();
    repeats.push_back(rank.mean(2 * measure_copy_bandwidth(rank.threads(), kBytes, rank.seconds())));
  }
  return measured(repeats);
}

namespace {

// A file of the system's folder for temporary ones, without a name, mapped.
class MappedFile {
 public:
  explicit MappedFile(size_t bytes) : file_(std::tmpfile()), bytes_(bytes) {
    if (file_ == nullptr) fail("calibrate: no temporary file can be made in {}: {}", P_tmpdir, std::strerror(errno));
    const std::vector<char> block(size_t{1} << 20, 0x3c);
    for (size_t written = 0; written < bytes; written += block.size())
      if (std::fwrite(block.data(), 1, block.size(), file_) != block.size()) give_up("written");
    if (std::fflush(file_) != 0) give_up("written");
    memory_ = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, ::fileno(file_), 0);
    if (memory_ == MAP_FAILED) give_up("mapped");
  }
  ~MappedFile() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, bytes_);
    if (file_ != nullptr) std::fclose(file_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  [[noreturn]] void give_up(const char* what) {
    const int error = errno;
    std::fclose(file_);
    fail("calibrate: {} MB of a temporary file in {} cannot be {}: {}", bytes_ >> 20, P_tmpdir, what,
         std::strerror(error));
  }

  FILE* file_;
  size_t bytes_;
  void* memory_ = MAP_FAILED;
};

}  // namespace

Measured measure_host_read(CalibrationRank& rank, const HostReaders& readers) {
  constexpr int64_t kSide = 2048;  // 8 MB a matrix
  constexpr size_t kStored = size_t{2} * kSide * kSide;
  const int64_t matrices = readers.reads ? std::max<int64_t>(1, kHostReadMatrices / readers.readers) : 0;
  std::optional<MappedFile> file;
  std::optional<ThreadTeam> team;
  if (readers.reads) {
    file.emplace(static_cast<size_t>(matrices) * kStored);
    team.emplace(readers.threads);
  }
  kernels::PackedMatrix matrix;
  matrix.n = matrix.k = kSide;
  matrix.dtype = DType::kBF16;
  matrix.layout = kernels::packed_layout(DType::kBF16);
  const size_t packed = kernels::packed_bytes(matrix);
  const double bytes = rank.world().all_reduce_sum(static_cast<double>(matrices) * kStored) / readers.hosts;
  std::vector<double> repeats;
  for (int i = 0; i < kRepeats; ++i) {
    // Fresh memory each time, as a model's is: its pages are part of the price.
    const Tensor to = Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(packed) * matrices});
    const double seconds = rank.slowest(1, [&] {
      if (!team) return;
      team->parallel_for(matrices, 1, [&](IndexRange range, int) {
        for (int64_t m = range.begin; m < range.end; ++m) {
          const TensorView stored(file->data() + static_cast<size_t>(m) * kStored, DType::kBF16, {kSide, kSide});
          kernels::pack({&stored, 1}, matrix, to.data<std::byte>() + static_cast<size_t>(m) * packed);
        }
      });
    });
    repeats.push_back(bytes / seconds);
  }
  return measured(repeats);
}

}  // namespace zoetrope::bench
