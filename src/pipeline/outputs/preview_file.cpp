#include "pipeline/outputs/preview_file.h"

#include <memory>

#include "zoetrope/video.h"

#include "base/folders.h"

namespace zoetrope::pipeline {

std::filesystem::path preview_file(const std::string& output) {
  const std::filesystem::path path = without_last_slash(output);
  return path.parent_path() / (path.stem().string() + ".preview.gif");
}

void write_preview(const Tensor& frames, const std::filesystem::path& file) {
  constexpr double kFps = 4;  // each frame is a latent frame: four frames of the clip
  VideoFormat format;
  format.height = static_cast<int>(frames.shape()[1]);
  format.width = static_cast<int>(frames.shape()[2]);
  format.fps = kFps;
  const std::unique_ptr<FrameSink> sink = video_file(file)(format);
  for (int64_t f = 0; f < frames.shape()[0]; ++f) sink->add_frame(frames.view().select(0, f).data<uint8_t>());
  sink->finish();
}

}  // namespace zoetrope::pipeline
