// The writers behind FrameWriter::open, one per kind of file. Private to the module.
#pragma once

#include <filesystem>
#include <memory>

#include "io/video.h"

namespace zoetrope::io {

std::unique_ptr<FrameWriter> open_mp4(const std::filesystem::path& path, const VideoFormat& format);
std::unique_ptr<FrameWriter> open_gif(const std::filesystem::path& path, const VideoFormat& format);
std::unique_ptr<FrameWriter> open_png(const std::filesystem::path& path, const VideoFormat& format);

}  // namespace zoetrope::io
