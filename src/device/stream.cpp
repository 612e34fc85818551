#include "device/stream.h"

#include <cstring>

#include "base/error.h"

namespace zoetrope {
namespace {

// Axes of extent 1 dropped, axes that are one run in both views merged; innermost last.
struct Plan {
  std::array<int64_t, Shape::kMaxRank> extent{}, to{}, from{};
  int rank = 0;
};

Plan merge_axes(const TensorView& destination, const TensorView& source) {
  Plan plan;
  for (int axis = 0; axis < source.rank(); ++axis) {
    const int64_t extent = source.extent(axis);
    if (extent == 1) continue;
    const int64_t to = destination.stride(axis), from = source.stride(axis);
    if (plan.rank > 0) {
      const auto last = static_cast<size_t>(plan.rank - 1);
      if (plan.to[last] == to * extent && plan.from[last] == from * extent) {
        plan.extent[last] *= extent;
        plan.to[last] = to;
        plan.from[last] = from;
        continue;
      }
    }
    const auto at = static_cast<size_t>(plan.rank++);
    plan.extent[at] = extent;
    plan.to[at] = to;
    plan.from[at] = from;
  }
  return plan;
}

}  // namespace

void copy(Stream& stream, const TensorView& destination, const TensorView& source) {
  ZT_CHECK(destination.shape() == source.shape() && destination.dtype() == source.dtype(), "copy of {} {} to {} {}",
           dtype_name(source.dtype()), source.shape().to_string(), dtype_name(destination.dtype()),
           destination.shape().to_string());
  if (source.size() == 0) return;
  stream.count_copied(static_cast<int64_t>(source.bytes()));
  const size_t element = dtype_size(source.dtype());
  Plan plan = merge_axes(destination, source);
  size_t run = element;
  if (plan.rank > 0) {
    const auto last = static_cast<size_t>(plan.rank - 1);
    if (plan.to[last] == 1 && plan.from[last] == 1) {
      run *= static_cast<size_t>(plan.extent[last]);
      --plan.rank;
    }
  }
  int64_t rows = 1;
  for (int axis = 0; axis < plan.rank; ++axis) rows *= plan.extent[static_cast<size_t>(axis)];
  constexpr int64_t kGrainBytes = 1 << 16;
  // One long run is split so that every thread copies a part.
  if (rows == 1 && run > 2 * kGrainBytes) {
    stream.team().parallel_for(static_cast<int64_t>(run), kGrainBytes, [&](IndexRange range, int) {
      std::memcpy(static_cast<char*>(destination.raw()) + range.begin,
                  static_cast<const char*>(source.raw()) + range.begin, static_cast<size_t>(range.size()));
    });
    return;
  }
  stream.team().parallel_for(
      rows, std::max<int64_t>(1, kGrainBytes / static_cast<int64_t>(run)), [&](IndexRange range, int) {
        for (int64_t row = range.begin; row < range.end; ++row) {
          int64_t rest = row, to = 0, from = 0;
          for (int axis = plan.rank - 1; axis >= 0; --axis) {
            const auto at = static_cast<size_t>(axis);
            const int64_t index = rest % plan.extent[at];
            rest /= plan.extent[at];
            to += index * plan.to[at];
            from += index * plan.from[at];
          }
          std::memcpy(static_cast<char*>(destination.raw()) + to * static_cast<int64_t>(element),
                      static_cast<const char*>(source.raw()) + from * static_cast<int64_t>(element), run);
        }
      });
}

}  // namespace zoetrope
