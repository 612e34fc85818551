// What rank 0 of a server tells the other ranks of a video, as text: the model's name and the settings.
#pragma once

#include <string>

#include "pipeline/settings/generate_options.h"

namespace zoetrope::server {

struct VideoOrder {
  std::string model;
  pipeline::GenerateOptions options;
};

std::string text_of(const VideoOrder& order);
VideoOrder parse_video_order(const std::string& text);

}  // namespace zoetrope::server
