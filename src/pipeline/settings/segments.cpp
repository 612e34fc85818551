#include "pipeline/settings/segments.h"

#include "base/error.h"
#include "base/index_range.h"

namespace zoetrope::pipeline {

int64_t least_segment_frames(int64_t shared) { return shared == 1 ? 5 : 13; }

Segments segments_of(const GenerateOptions& o, bool animates) {
  if (!animates) return {1, o.num_frames, 0};
  Segments segments;
  segments.frames = o.segment_frame_length % 4 == 1 ? o.segment_frame_length : o.segment_frame_length / 4 * 4 + 1;
  segments.shared = o.prev_segment_conditioning_frames;
  const int64_t fresh = segments.frames - segments.shared;
  if (fresh <= segments.shared) {
    fail("segment_frame_length={}: with prev_segment_conditioning_frames={} it must be {} or more",
         o.segment_frame_length, segments.shared, least_segment_frames(segments.shared));
  }
  if (o.num_frames <= segments.shared) {
    fail("{}: {} frames are too few; prev_segment_conditioning_frames={} needs {} or more",
         o.pose_video.empty() ? "num_frames" : "pose_video", o.num_frames, segments.shared, segments.shared + 1);
  }
  segments.count = ceil_div(o.num_frames - segments.shared, fresh);
  return segments;
}

}  // namespace zoetrope::pipeline
