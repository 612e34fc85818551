#include "kernels/conv/direct_convolution.h"

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "base/index_range.h"
#include "tensor/half.h"

namespace zoetrope::kernels {
namespace {

// An item is a band of rows × a strip of columns that one thread computes completely, over all taps and channels. Its
// sums, the inputs they need and one block of weights share the L2 cache (2 MB), and the block is used for all tiles of
// the item: at least 24, so that loading it costs little. Bands of 8 rows: 16 or 1, and strips of twice the width or
// the whole row, were 0 to 3 % slower.
constexpr int64_t kBandRows = 8;
constexpr int64_t kStripFloats = 12288;  // columns × channels
// Weights of a block that are used for one tile before the next: with more frames at once fewer sums go through memory,
// too many do not fit the cache (27 taps: 96 channels 498 kB at once, 192 channels 332 kB and 384 channels 663 kB per
// frame).
constexpr int64_t kWeightBytes = 600 << 10;
// With AMX items are smaller, so that the data of the next one fits the cache, too: one tile wide from 256 channels on.
// Strips of twice the width and bands of 16 rows were not faster.
constexpr int64_t kAmxStripFloats = 6144;
// Weights of a block that are used at once with AMX, where the next block and the next item's inputs share the cache.
constexpr int64_t kAmxWeightBytes = 200 << 10;
// Weights of a convolution that stay in the cache from item to item; larger ones are prefetched a block ahead.
constexpr int64_t kCachedWeightBytes = 600 << 10;
// Pixels an even number of cache lines apart share few sets of the L1 cache, and AMX loads evict each other. Such
// inputs are copied with a gap of a line between pixels: 384 channels went from 40 to 45 or 54 % of the peak, 512 from
// 31 to 39 %, 192 gained 1 to 2 %.
constexpr int64_t kEvenLines = 128, kAmxElement = 2;  // bytes
constexpr size_t kAlignment = 64;
constexpr int64_t kLine = 64;  // of the cache, in bytes
// Pixels that are finished together between AMX steps, and the fractions in which due pixels are counted.
constexpr int64_t kFinishPixels = 4, kParts = 1 << 16;

// Weights that a thread widens at a time.
constexpr int64_t kWidenGrain = int64_t{1} << 14;

}  // namespace

Refusal DirectConvolution::refusal(const FrameConvProblem& p, const DirectKernels& kernels) {
  if (p.frames * (p.kernel[0] + (kernels.rows - 1) * p.stride) > kMostRuns)
    return "a tile takes more than " + std::to_string(kMostRuns) + " rows of inputs";
  if (kernels.pair == 2 && p.dtype != DType::kBF16) return "multiplies bf16 only";
  if (kernels.pair == 2 && kernels.depth == 1 && p.in_channels % 2 != 0)
    return "needs an even number of input channels";
  return {};
}

DirectConvolution::DirectConvolution(const FrameConvProblem& problem, const DirectKernels& kernels,
                                     const TensorView& bias)
    : problem_(problem), kernels_(kernels), epilogue_(problem, kernels, bias) {
  channels_ = round_up(problem.in_channels, kernels.depth);
  run_length_ = problem.kernel[1] * channels_;
  const bool crowded = kernels.with_amx != nullptr && channels_ * kAmxElement % kEvenLines == 0;
  copied_pixel_ = channels_ + (crowded ? kernels.depth : 0);
  narrow_ = problem.out_channels == kNarrowChannels && run_length_ % kernels.lanes == 0 && kernels.pair == 1;
  widens_ = problem.dtype == DType::kBF16 && kernels.pair == 1;
  tile_dtype_ = kernels.pair == 2 ? DType::kBF16 : DType::kF32;
  stored_dtype_ = widens_ && problem.bf16_weights ? DType::kBF16 : tile_dtype_;
  columns_ = epilogue_.columns();
  const auto element = static_cast<int64_t>(dtype_size(tile_dtype_));
  const int64_t frame_inputs = problem.kernel[0] * run_length_, inputs = problem.frames * frame_inputs;
  const int64_t packed_columns = narrow_ ? problem.out_channels : columns_;
  weights_ = packed_columns * inputs;
  for (int64_t column = 0; column < packed_columns; column += weight_step()) {
    const int64_t width = std::min(weight_step(), packed_columns - column);
    const auto vectors = static_cast<int>(narrow_ ? 1 : width / kernels.lanes);
    blocks_.push_back({column, vectors, column * inputs * element, width * frame_inputs * element});
  }
  const int64_t at_once = kernels.with_amx == nullptr ? kWeightBytes : kAmxWeightBytes;
  chunk_ = std::clamp<int64_t>(at_once / blocks_.front().frame_bytes, 1, problem.frames);
}

// Where tiles read the weight of an input, in a block that begins at 0: [frame][row of taps][k of the run, in
// pairs][output channel of the block][of the pair]. With AMX [frame][depth of input channels][column][row of
// taps][lanes of output channels] and within it [pair][output channel][of the pair].
int64_t DirectConvolution::place(int64_t frame, int64_t row, int64_t column, int64_t channel, int64_t out,
                                 int64_t width) const {
  const int64_t pair = kernels_.pair, lanes = kernels_.lanes, depth = kernels_.depth;
  const std::array<int64_t, 2>& kernel = problem_.kernel;
  if (kernels_.with_amx == nullptr) {
    const int64_t k = (frame * kernel[0] + row) * run_length_ + column * channels_ + channel;
    return (k / pair * width + out) * pair + k % pair;
  }
  const int64_t step = ((frame * channels_ / depth + channel / depth) * kernel[1] + column) * kernel[0] + row;
  const int64_t unit = step * width / lanes + out / lanes, k = channel % depth;
  return unit * depth * lanes + (k / pair * lanes + out % lanes) * pair + k % pair;
}

// The block's weights from those of output channels `first` and on.
template <typename Element>
void DirectConvolution::pack_block(const TensorView& weight, int64_t first, const Block& block, Element* to) const {
  const FrameConvProblem& p = problem_;
  const int64_t rows = p.kernel[0], columns = p.kernel[1], width = int64_t{block.vectors} * kernels_.lanes;
  const int64_t outs = std::min(width, p.out_channels - block.column);
  std::fill_n(to, width * p.frames * rows * run_length_, Element{});
  // A place is the sum of a tap's, a channel's and an output channel's. Computed for each weight, loading the larger
  // VAE took 18.3 instead of 7.1 s, the smaller 2.5 instead of 0.8 (one thread).
  std::vector<int64_t> taps, channels;
  for (int64_t tap = 0; tap < p.frames * rows; ++tap)
    for (int64_t j = 0; j < columns; ++j) taps.push_back(place(tap / rows, tap % rows, j, 0, 0, width));
  for (int64_t c = 0; c < p.in_channels; ++c) channels.push_back(place(0, 0, 0, c, 0, width));
  const auto count = static_cast<int64_t>(taps.size());
  for (int64_t c = 0; c < p.in_channels; ++c) {
    for (int64_t o = 0; o < outs; ++o) {
      const float* from = weight.data<float>() + ((block.column - first + o) * p.in_channels + c) * count;
      Element* at = to + channels[static_cast<size_t>(c)] + place(0, 0, 0, 0, o, width);
      for (int64_t i = 0; i < count; ++i) at[taps[static_cast<size_t>(i)]] = from_float<Element>(from[i]);
    }
  }
}

// [frame][row of taps][output channel][k].
template <typename Element>
void DirectConvolution::pack_narrow(const TensorView& weight, Element* to) const {
  const FrameConvProblem& p = problem_;
  const float* from = weight.data<float>();
  std::fill_n(to, weights_, Element{});
  for (int64_t o = 0; o < p.out_channels; ++o)
    for (int64_t c = 0; c < p.in_channels; ++c)
      for (int64_t tap = 0; tap < p.frames * p.kernel[0]; ++tap)
        for (int64_t j = 0; j < p.kernel[1]; ++j, ++from)
          to[(tap * p.out_channels + o) * run_length_ + j * p.in_channels + c] = from_float<Element>(*from);
}

void DirectConvolution::pack(const TensorView& weight, int64_t first, std::byte* packed) const {
  const auto pack_as = [&]<typename Element>(Element* to) {
    if (narrow_) return pack_narrow(weight, to);
    for (const Block& block : blocks_) {
      if (block.column < first || block.column >= first + weight.extent(0)) continue;
      pack_block(weight, first, block, to + block.column * (weights_ / columns_));
    }
  };
  if (stored_dtype_ == DType::kBF16) pack_as(reinterpret_cast<BFloat16*>(packed));
  else pack_as(reinterpret_cast<float*>(packed));
}

// Once per call, for all its threads: a call has thousands of pixels, so the cost is small. Widening a block for each
// item would need less scratch, but would be repeated for every item.
const std::byte* DirectConvolution::tile_weights(Stream& stream) const {
  if (stored_dtype_ == tile_dtype_) return packed_;
  const auto* narrow = reinterpret_cast<const BFloat16*>(packed_);
  auto* wide = static_cast<float*>(stream.scratch().allocate(static_cast<size_t>(weights_) * sizeof(float)));
  stream.team().parallel_for(weights_, kWidenGrain, [&](IndexRange range, int) {
    kernels_.widen(narrow + range.begin, wide + range.begin, range.size());
  });
  return reinterpret_cast<const std::byte*>(wide);
}

struct DirectConvolution::Item {
  IndexRange rows, columns;
  bool copied = false;  // its inputs are, to scratch
  int64_t pixels() const { return rows.size() * columns.size(); }
};

struct DirectConvolution::Sums {
  float* acc;
  const std::byte* copy;  // of the inputs, where the item's are copied
  IndexRange frames;
  OverlappedWork* overlapped;  // with AMX
};

struct DirectConvolution::Plan {
  std::span<const TensorView> inputs;
  const FrameConvOutput& out;
  const float* gamma = nullptr;        // padded with zeros
  const std::byte* weights = nullptr;  // as tiles read them
  int64_t first_frame = 0;             // those before are empty
  int64_t height = 0, width = 0;
  int64_t bands = 0, band_tiles = 0, strips = 0, strip_tiles = 0;
  int64_t most_columns = 0;  // of an item
  size_t acc_bytes = 0, scratch_bytes = 0;
};

DirectConvolution::Plan DirectConvolution::plan(std::span<const TensorView> inputs, const FrameConvOutput& out) const {
  Plan plan{inputs, out};
  while (!inputs[static_cast<size_t>(plan.first_frame)]) ++plan.first_frame;
  const TensorView& any = out.raw ? out.raw : out.normed;
  plan.height = any.extent(0);
  plan.width = any.extent(1);
  const int64_t deepest = std::max(problem_.in_channels * problem_.stride, columns_);
  plan.strip_tiles = ceil_div(plan.width, kernels_.pixels);
  const int64_t floats = kernels_.with_amx == nullptr ? kStripFloats : kAmxStripFloats;
  const int64_t most_tiles = std::max<int64_t>(1, floats / deepest / kernels_.pixels);
  plan.strips = ceil_div(plan.strip_tiles, most_tiles);
  plan.band_tiles = ceil_div(plan.height, kernels_.rows);
  plan.bands = ceil_div(plan.height, kBandRows);
  plan.most_columns = ceil_div(plan.strip_tiles, plan.strips) * kernels_.pixels;
  plan.acc_bytes = static_cast<size_t>(round_up(kBandRows * plan.most_columns * columns_ * 4, kAlignment));
  plan.scratch_bytes = (kernels_.with_amx == nullptr ? 1 : 2) * plan.acc_bytes;
  if (widens_ || kernels_.with_amx != nullptr) {
    const int64_t columns = always_copies() ? plan.most_columns : kernels_.pixels;
    const int64_t copy = chunk_ * input_rows(kBandRows) * input_columns(columns) * copied_pixel_;
    plan.scratch_bytes += static_cast<size_t>(copy) * dtype_size(tile_dtype_);
  }
  plan.scratch_bytes = static_cast<size_t>(round_up(static_cast<int64_t>(plan.scratch_bytes), kAlignment));
  return plan;
}

void DirectConvolution::run(Stream& stream, std::span<const TensorView> inputs, const FrameConvOutput& out) const {
  Plan call = plan(inputs, out);
  const Arena::Scope scope(stream.scratch());
  call.weights = tile_weights(stream);
  call.gamma = epilogue_.gamma(stream, out);
  const int64_t items = call.bands * call.strips;
  const auto threads = static_cast<int>(std::min<int64_t>(stream.team().size(), items));
  auto* scratch = static_cast<std::byte*>(stream.scratch().allocate(static_cast<size_t>(threads) * call.scratch_bytes));
  std::atomic<int64_t> next{0};
  auto work = [&](int thread) {
    if (thread >= threads) return;
    std::byte* mine = scratch + static_cast<size_t>(thread) * call.scratch_bytes;
    if (kernels_.with_amx == nullptr) {
      for (int64_t index = next++; index < items; index = next++) run_item(call, item(call, index), mine);
      return;
    }
    auto body = [&] { run_items(call, items, next, mine); };
    kernels_.with_amx([](void* argument) { (*static_cast<decltype(body)*>(argument))(); }, &body);
  };
  if (threads == 1) work(0);
  else stream.team().run(work);
}

DirectConvolution::Item DirectConvolution::item(const Plan& plan, int64_t index) const {
  const auto range = [](int64_t all, int64_t count, int64_t at, int64_t tile, int64_t size) {
    const IndexRange tiles = split_range(all, count, at);
    return IndexRange{tiles.begin * tile, std::min(tiles.end * tile, size)};
  };
  Item item{range(plan.band_tiles, plan.bands, index / plan.strips, kernels_.rows, plan.height),
            range(plan.strip_tiles, plan.strips, index % plan.strips, kernels_.pixels, plan.width)};
  const bool narrow = kernels_.with_amx != nullptr && item.columns.size() < kernels_.pixels;
  item.copied = always_copies() || narrow;
  return item;
}

void DirectConvolution::run_item(const Plan& plan, const Item& item, std::byte* scratch) const {
  auto* acc = reinterpret_cast<float*>(scratch);
  std::byte* copy = scratch + plan.acc_bytes;
  for (int64_t first = plan.first_frame; first < problem_.frames; first += chunk_) {
    const int64_t last = std::min(first + chunk_, problem_.frames);
    if (item.copied) copy_inputs(plan, item, copy, first, last);
    sum_taps(plan, item, {acc, copy, {first, last}, nullptr});
  }
  finish_pixels(plan, item, acc, {0, item.pixels()});
}

// The work of the rest of the core while AMX sums an item: it finishes the item before, whose sums are in scratch of
// their own, and prefetches the inputs of the next. Without the first a fifth of the time would be spent finishing
// pixels, without the second as much waiting for memory.
class DirectConvolution::OverlappedWork {
 public:
  OverlappedWork(const DirectConvolution& convolution, const Plan& plan) : convolution_(convolution), plan_(plan) {}
  void begin(const Item& now) {
    const FrameConvProblem& p = convolution_.problem_;
    const int64_t tiles = ceil_div(now.rows.size(), convolution_.kernels_.rows) *
                          ceil_div(now.columns.size(), convolution_.kernels_.pixels);
    frame_steps_ = tiles * (convolution_.channels_ / convolution_.kernels_.depth) * p.kernel[1];
    done_ = due_ = each_pixels_ = 0;
  }
  void finish(const Item& before, float* acc) {
    before_ = &before;
    acc_ = acc;
    each_pixels_ = ceil_div(before.pixels() * kParts, steps({plan_.first_frame, convolution_.problem_.frames}));
  }
  // Inputs that are needed after the frames `now`.
  void prefetch_inputs(const Item& after, IndexRange frames, IndexRange now) {
    after_ = &after;
    lines_ = ceil_div(convolution_.input_columns(after.columns.size()) * convolution_.problem_.in_channels * kElement,
                      kLine);
    rows_ = convolution_.input_rows(after.rows.size());
    row_ = 0;
    frames_ = frames;
    next_row();
    each_lines_ = ceil_div(rows_ * lines_ * frames.size(), steps(now));
  }
  // Weights of the next block.
  void prefetch_weights(const std::byte* from, int64_t bytes, IndexRange now) {
    weights_ = from;
    weights_end_ = from + bytes;
    each_weights_ = ceil_div(bytes * static_cast<int64_t>(convolution_.blocks_.size()), kLine * steps(now));
  }
  void step() {
    for (int64_t i = 0; i < each_lines_ && from_ != nullptr; ++i) {
      __builtin_prefetch(from_, 0, 2);
      from_ += kLine;
      if (from_ >= end_) next_row();
    }
    for (int64_t i = 0; i < each_weights_ && weights_ < weights_end_; ++i, weights_ += kLine)
      __builtin_prefetch(weights_, 0, 2);
    if (before_ == nullptr) return;
    due_ += each_pixels_;
    if (due_ >= kFinishPixels * kParts) finish_some(due_ / kParts);
  }
  void end() {
    if (before_ != nullptr) finish_some(before_->pixels());
  }

 private:
  static constexpr int64_t kElement = sizeof(BFloat16);

  int64_t steps(IndexRange frames) const {
    return frames.size() * frame_steps_ * static_cast<int64_t>(convolution_.blocks_.size());
  }
  void finish_some(int64_t count) {
    const IndexRange pixels{done_, std::min(done_ + count, before_->pixels())};
    convolution_.finish_pixels(plan_, *before_, acc_, pixels);
    due_ -= count * kParts;
    done_ = pixels.end;
    if (done_ == before_->pixels()) before_ = nullptr;
  }
  void next_row() {
    const FrameConvProblem& p = convolution_.problem_;
    from_ = nullptr;
    if (row_ == rows_) {
      row_ = 0;
      ++frames_.begin;
    }
    if (frames_.begin == frames_.end) return;
    const TensorView& x = plan_.inputs[static_cast<size_t>(frames_.begin)];
    from_ = x.data<std::byte>() + ((p.origin[0] + after_->rows.begin * p.stride + row_++) * x.stride(0) +
                                   (p.origin[1] + after_->columns.begin * p.stride) * p.in_channels) *
                                      kElement;
    end_ = from_ + lines_ * kLine;
  }

  const DirectConvolution& convolution_;
  const Plan& plan_;
  int64_t frame_steps_ = 1;
  const Item *before_ = nullptr, *after_ = nullptr;
  float* acc_ = nullptr;
  int64_t each_pixels_ = 0, due_ = 0, done_ = 0;  // parts, parts, pixels
  const std::byte *from_ = nullptr, *end_ = nullptr;
  int64_t lines_ = 0, each_lines_ = 0, rows_ = 0, row_ = 0;
  IndexRange frames_;
  const std::byte *weights_ = nullptr, *weights_end_ = nullptr;
  int64_t each_weights_ = 0;
};

void DirectConvolution::run_items(const Plan& plan, int64_t items, std::atomic<int64_t>& next,
                                  std::byte* scratch) const {
  float* sums[2] = {reinterpret_cast<float*>(scratch), reinterpret_cast<float*>(scratch + plan.acc_bytes)};
  std::byte* copy = scratch + 2 * plan.acc_bytes;
  int64_t index = next++;
  if (index >= items) return;
  Item before, now = item(plan, index), after;
  OverlappedWork overlapped(*this, plan);
  const auto frames_from = [&](int64_t first) { return IndexRange{first, std::min(first + chunk_, problem_.frames)}; };
  for (int64_t step = 0;; ++step) {
    overlapped.begin(now);
    if (step > 0) overlapped.finish(before, sums[(step + 1) % 2]);
    index = next++;
    const bool more = index < items;
    if (more) after = item(plan, index);
    for (IndexRange frames = frames_from(plan.first_frame); frames.size() > 0; frames = frames_from(frames.end)) {
      const bool last = frames.end == problem_.frames;
      if (!last) overlapped.prefetch_inputs(now, frames_from(frames.end), frames);
      else if (more) overlapped.prefetch_inputs(after, frames_from(plan.first_frame), frames);
      if (now.copied) copy_inputs(plan, now, copy, frames.begin, frames.end);
      sum_taps(plan, now, {sums[step % 2], copy, frames, &overlapped});
    }
    overlapped.end();
    if (!more) return finish_pixels(plan, now, sums[step % 2], {0, now.pixels()});
    before = now;
    now = after;
  }
}

// The inputs of an item as tiles multiply them, dense: [frame][row][column][C]. The padding columns of whole tiles are
// not initialized: their results are not used.
void DirectConvolution::copy_inputs(const Plan& plan, const Item& item, std::byte* copy, int64_t first,
                                    int64_t last) const {
  const FrameConvProblem& p = problem_;
  const int64_t rows = input_rows(item.rows.size()), columns = input_columns(item.columns.size());
  const auto row_bytes = copied_row(item) * static_cast<int64_t>(dtype_size(tile_dtype_));
  for (int64_t frame = first; frame < last; ++frame) {
    const TensorView& x = plan.inputs[static_cast<size_t>(frame)];
    const BFloat16* from = x.data<BFloat16>() + (p.origin[0] + item.rows.begin * p.stride) * x.stride(0) +
                           (p.origin[1] + item.columns.begin * p.stride) * p.in_channels;
    for (int64_t row = 0; row < rows; ++row, copy += row_bytes, from += x.stride(0)) {
      if (widens_) {
        kernels_.widen(from, reinterpret_cast<float*>(copy), columns * p.in_channels);
        continue;
      }
      auto* to = reinterpret_cast<BFloat16*>(copy);
      for (int64_t column = 0; column < columns; ++column, to += copied_pixel_)
        std::fill(std::copy_n(from + column * p.in_channels, p.in_channels, to), to + channels_, BFloat16{});
    }
  }
}

// How many pixels the last tile of a row shares with the one before.
int64_t DirectConvolution::overlap(const Item& item) const {
  const int64_t rest = item.columns.size() % kernels_.pixels;
  return kernels_.with_amx != nullptr && !item.copied && rest > 0 ? kernels_.pixels - rest : 0;
}

int64_t DirectConvolution::copied_row(const Item& item) const {
  const int64_t whole = kernels_.with_amx == nullptr ? 1 : kernels_.pixels;
  return input_columns(round_up(item.columns.size(), whole)) * copied_pixel_;
}

// The rows of input that the tiles of output row `row` read, at the item's first column. Where a tile has more rows
// than the item, its last ones repeat.
int64_t DirectConvolution::runs_of(const Plan& plan, const Item& item, int64_t row, IndexRange frames,
                                   const std::byte* copy, const std::byte** runs) const {
  const FrameConvProblem& p = problem_;
  const auto element = static_cast<int64_t>(dtype_size(item.copied ? tile_dtype_ : p.dtype));
  const int64_t rows = input_rows(kernels_.rows), last = input_rows(item.rows.size()) - 1;
  int64_t count = 0;
  for (int64_t frame = frames.begin; frame < frames.end; ++frame) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = std::min((row - item.rows.begin) * p.stride + i, last);
      if (item.copied) {
        runs[count++] = copy + ((frame - frames.begin) * (last + 1) + at) * copied_row(item) * element;
        continue;
      }
      const TensorView& x = plan.inputs[static_cast<size_t>(frame)];
      runs[count++] = x.data<std::byte>() + ((p.origin[0] + item.rows.begin * p.stride + at) * x.stride(0) +
                                             (p.origin[1] + item.columns.begin * p.stride) * p.in_channels) *
                                                element;
    }
  }
  return count;
}

void DirectConvolution::sum_taps(const Plan& plan, const Item& item, const Sums& sums) const {
  const FrameConvProblem& p = problem_;
  const auto element = static_cast<int64_t>(dtype_size(item.copied ? tile_dtype_ : p.dtype));
  const bool amx = kernels_.with_amx != nullptr;
  TileCall call{};
  call.run_length = run_length_;
  call.column_stride = item.copied ? copied_pixel_ : channels_;
  call.pixel_stride = p.stride * call.column_stride;
  call.acc_stride = columns_;
  call.accumulate = sums.frames.begin > plan.first_frame;
  call.frames = sums.frames.size();
  call.channels = channels_;
  call.kernel = p.kernel;
  call.row_stride = p.stride;
  call.acc_row = plan.most_columns * columns_;
  call.overlapped = [](void* work) { static_cast<OverlappedWork*>(work)->step(); };
  call.overlapped_work = sums.overlapped;
  const auto weights_of = [&](const Block& block, int64_t frame) {
    return plan.weights + block.weights + frame * block.frame_bytes;
  };
  for (const Block& block : blocks_) {
    call.weights = weights_of(block, sums.frames.begin);
    if (amx && weight_bytes() > kCachedWeightBytes) {
      const bool last = &block == &blocks_.back();
      const int64_t chunk = sums.frames.end == p.frames ? plan.first_frame : sums.frames.end;
      const Block& next = last ? blocks_.front() : *(&block + 1);
      sums.overlapped->prefetch_weights(weights_of(next, last ? chunk : sums.frames.begin),
                                        next.frame_bytes * sums.frames.size(), sums.frames);
    }
    for (int64_t row = item.rows.begin; row < item.rows.end; row += kernels_.rows) {
      const std::byte* runs[kMostRuns];
      call.run_count = runs_of(plan, item, row, sums.frames, sums.copy, runs);
      float* row_acc = sums.acc + (row - item.rows.begin) * call.acc_row + block.column;
      for (int64_t column = 0; column < item.columns.size(); column += kernels_.pixels) {
        const int64_t pixels = std::min<int64_t>(kernels_.pixels, item.columns.size() - column);
        // A whole tile at the end of a row overlaps the one before in its inputs, not in its sums.
        const int64_t begin = column - (pixels < kernels_.pixels ? overlap(item) : 0);
        for (int64_t r = 0; r < call.run_count; ++r) call.runs[r] = runs[r] + begin * call.pixel_stride * element;
        call.acc = row_acc + column * columns_;
        if (narrow_) kernels_.narrow[pixels - 1](call);
        else kernels_.tile[amx ? 0 : pixels - 1][block.vectors - 1](call);
      }
    }
  }
}

// Pixels are numbered row by row.
void DirectConvolution::finish_pixels(const Plan& plan, const Item& item, float* acc, IndexRange pixels) const {
  const int64_t width = item.columns.size();
  while (pixels.begin < pixels.end) {
    const int64_t row = pixels.begin / width, column = pixels.begin % width;
    const int64_t whole = width / kernels_.pixels * kernels_.pixels, shift = column < whole ? 0 : overlap(item);
    const int64_t count = std::min((column < whole ? whole : width) - column, pixels.size());
    epilogue_.finish(plan.out, plan.gamma, item.rows.begin + row, item.columns.begin + column, count,
                     acc + (row * plan.most_columns + column + shift) * columns_);
    pixels.begin += count;
  }
}

}  // namespace zoetrope::kernels
