// The writers behind FrameWriter::open, one per kind of file. Private to the module.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/media/video.h"

namespace zoetrope::io {

// One file whose extension (".mp4", lower case) FFmpeg's encoders write: mp4, mov, webm, webp.
bool ffmpeg_writes(const std::string& extension);
// Throws Error for a codec or crf that such a file cannot have.
void check_ffmpeg(const std::filesystem::path& path, const std::string& extension, const VideoFormat& format);
int64_t ffmpeg_bytes(const std::filesystem::path& path, const std::string& extension, const VideoFormat& format);
std::unique_ptr<FrameWriter> open_ffmpeg(const std::filesystem::path& path, const std::string& extension,
                                         const VideoFormat& format);
std::unique_ptr<FrameWriter> open_gif(const std::filesystem::path& path, const VideoFormat& format);
std::unique_ptr<FrameWriter> open_png(const std::filesystem::path& path, const VideoFormat& format);
// The files that it writes for so many frames.
std::vector<std::filesystem::path> png_files(const std::filesystem::path& path, int64_t frames);
std::vector<std::filesystem::path> later_png_files(const std::filesystem::path& path, int64_t frames);

}  // namespace zoetrope::io
