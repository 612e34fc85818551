// What rank 0 of a server tells the other ranks of a video: the model's name and the settings that are not the
// defaults, as text.
#pragma once

#include <string>

#include "pipeline/generate_options.h"

namespace zoetrope::server {

struct VideoOrder {
  std::string model;
  pipeline::GenerateOptions options;
};

std::string text_of(const VideoOrder& order);
VideoOrder parse_video_order(const std::string& text);

}  // namespace zoetrope::server
