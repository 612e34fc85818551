// The segments of a long video.
#pragma once

#include <cstdint>

#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// Long videos of Animate are made in segments. Each begins with the last frames of the one before it, which are decoded
// once more and left out; other models make one segment.
struct Segments {
  int64_t count = 1;
  int64_t frames = 0;  // of each, the shared ones included
  int64_t shared = 0;  // with the segment before

  int64_t begin(int64_t segment) const { return segment * (frames - shared); }  // in the driving videos
  int64_t all_frames() const { return begin(count - 1) + frames; }              // at least those of the video
};
// With `shared` of them from the segment before, so that each has more of its own: 4k + 1 > 2·shared.
int64_t least_segment_frames(int64_t shared);
Segments segments_of(const GenerateOptions& options, bool animates);

}  // namespace zoetrope::pipeline
