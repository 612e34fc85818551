#include "models/wan/vae/vae_shortcut.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "tensor/dispatch.h"
#include "trace/trace.h"

namespace zoetrope::wan {
namespace {

constexpr int64_t kGrainRows = 4;

// For each place in a cell (frame, row, column): the small picture's channel for each channel of the large one.
std::vector<std::vector<int64_t>> channels_by_place(const ShortcutLayout& layout) {
  std::vector<std::vector<int64_t>> places;
  for (int64_t frame = 0; frame < layout.time; ++frame) {
    for (int64_t row = 0; row < layout.space; ++row) {
      for (int64_t column = 0; column < layout.space; ++column) {
        std::vector<int64_t>& channels = places.emplace_back(static_cast<size_t>(layout.large));
        for (int64_t c = 0; c < layout.large; ++c) {
          channels[static_cast<size_t>(c)] = layout.small_channel(c, frame, row, column);
        }
      }
    }
  }
  return places;
}

std::vector<std::vector<int64_t>> different(std::vector<std::vector<int64_t>> all) {
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

bool identity(const std::vector<int64_t>& channels) {
  std::vector<int64_t> same(channels.size());
  std::iota(same.begin(), same.end(), 0);
  return channels == same;
}

// In the first stage, whose frames are the largest, channels stay in order: a loop of vectors.
template <typename T>
void add_to(float* sums, const T* from, const MeanShortcut::Targets& targets) {
  const auto count = static_cast<int64_t>(targets.channels.size());
  if (targets.in_order) {
    for (int64_t c = 0; c < count; ++c) sums[c] += to_float(from[c]);
  } else {
    for (int64_t c = 0; c < count; ++c) sums[targets.channels[static_cast<size_t>(c)]] += to_float(from[c]);
  }
}

template <typename T>
void gather(ThreadTeam& team, const TensorView& x, const std::vector<int64_t>& channels, const TensorView& to) {
  team.parallel_for(to.extent(0), kGrainRows, [&](IndexRange range, int) {
    for (int64_t y = range.begin; y < range.end; ++y) {
      for (int64_t column = 0; column < to.extent(1); ++column) {
        const T* from = x.data<T>() + y * x.stride(0) + column * x.stride(1);
        T* target = to.data<T>() + y * to.stride(0) + column * to.stride(1);
        for (const int64_t channel : channels) *target++ = from[channel];
      }
    }
  });
}

}  // namespace

CopyShortcut::CopyShortcut(const ShortcutLayout& layout) : layout_(layout) {
  const auto places = channels_by_place(layout);
  sources_ = different(places);
  for (const auto& channels : places) {
    const auto found = std::lower_bound(sources_.begin(), sources_.end(), channels);
    picture_of_.push_back(static_cast<size_t>(found - sources_.begin()));
  }
}

void CopyShortcut::take(const VaeRun& run, const Frame& x) {
  const trace::Span span(run.stream.lane(), "vae.shortcut");
  kept_.clear();
  for (const std::vector<int64_t>& channels : sources_) {
    const Frame& to = kept_.emplace_back(run.like(x, layout_.large));
    if (x.channels() == layout_.large && identity(channels)) {
      copy(run.stream, to.view(), x.view());
      continue;
    }
    with_compute_type(run.pool.dtype(), "a frame", [&](auto tag) {
      gather<typename decltype(tag)::type>(run.stream.team(), x.view(), channels, to.view());
    });
  }
}

TensorView CopyShortcut::at(int64_t frame, int64_t row, int64_t column) const {
  const int64_t place = (frame * layout_.space + row) * layout_.space + column;
  return kept_[picture_of_[static_cast<size_t>(place)]].view();
}

int64_t copied_pictures(const ShortcutLayout& layout) {
  return static_cast<int64_t>(different(channels_by_place(layout)).size());
}

MeanShortcut::MeanShortcut(const ShortcutLayout& layout) : layout_(layout) {
  const auto pixels = static_cast<size_t>(layout.space * layout.space);
  for (std::vector<int64_t>& channels : channels_by_place(layout)) {
    if (targets_.empty() || targets_.back().size() == pixels) targets_.emplace_back();
    const bool in_order = identity(channels);
    targets_.back().push_back({std::move(channels), in_order});
  }
  start();
}

void MeanShortcut::start() {
  seen_ = layout_.time - 1;
  sum_ = {};
}

void MeanShortcut::take(const VaeRun& run, const Frame& x) {
  const trace::Span span(run.stream.lane(), "vae.shortcut");
  const bool begins = !sum_;
  if (begins) {
    const FrameRows& large = x.place();
    const int64_t f = layout_.space;
    const FrameRows place{{large.rows.begin / f, large.rows.end / f}, large.height / f, large.width / f};
    sum_ = run.take(place, layout_.small);
  }
  with_compute_type(run.pool.dtype(), "a frame",
                    [&](auto tag) { add<typename decltype(tag)::type>(run.stream.team(), x.view(), begins); });
  ++seen_;
}

template <typename T>
void MeanShortcut::add(ThreadTeam& team, const TensorView& x, bool begins) const {
  const TensorView to = sum_.view();
  const auto& pixels = targets_[static_cast<size_t>(seen_)];
  const float share = 1.0f / static_cast<float>(layout_.group());
  team.parallel_for(to.extent(0), kGrainRows, [&](IndexRange range, int) {
    std::vector<float> sums(static_cast<size_t>(layout_.small));
    for (int64_t y = range.begin; y < range.end; ++y) {
      for (int64_t column = 0; column < to.extent(1); ++column) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        for (size_t pixel = 0; pixel < pixels.size(); ++pixel) {
          const auto i = static_cast<int64_t>(pixel) / layout_.space, j = static_cast<int64_t>(pixel) % layout_.space;
          const T* from =
              x.data<T>() + (layout_.space * y + i) * x.stride(0) + (layout_.space * column + j) * x.stride(1);
          add_to(sums.data(), from, pixels[pixel]);
        }
        T* target = to.data<T>() + y * to.stride(0) + column * to.stride(1);
        for (int64_t c = 0; c < layout_.small; ++c) {
          const float before = begins ? 0.0f : to_float(target[c]);
          target[c] = from_float<T>(before + sums[static_cast<size_t>(c)] * share);
        }
      }
    }
  });
}

Frame MeanShortcut::finished() {
  if (seen_ < layout_.time) return {};
  seen_ = 0;
  return std::exchange(sum_, Frame{});
}

void add_frame(const VaeRun& run, const Frame& x, const Frame& y) {
  const TensorView to = x.view(), from = y.view();
  ZT_CHECK(to.shape() == from.shape());
  const int64_t count = to.extent(1) * to.extent(2);
  with_compute_type(run.pool.dtype(), "a frame", [&](auto tag) {
    using T = typename decltype(tag)::type;
    run.stream.team().parallel_for(to.extent(0), kGrainRows, [&](IndexRange range, int) {
      for (int64_t row = range.begin; row < range.end; ++row) {
        T* sums = to.data<T>() + row * to.stride(0);
        const T* more = from.data<T>() + row * from.stride(0);
        for (int64_t i = 0; i < count; ++i) sums[i] = from_float<T>(to_float(sums[i]) + to_float(more[i]));
      }
    });
  });
}

}  // namespace zoetrope::wan
