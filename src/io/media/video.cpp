#include "io/media/video.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "io/media/extension.h"
#include "io/media/video_plugin_host.h"
#include "io/media/video_writers.h"

namespace zoetrope::io {

namespace {

constexpr int kMaxSize = 16384;  // of H.264 and of any sensible clip
constexpr double kMaxFps = 1000;

float clamp_to_unit(float value) { return value > 0 ? std::min(value, 1.0f) : 0.0f; }  // NaN is not above 0

}  // namespace

uint8_t to_u8_truncate(float value) { return static_cast<uint8_t>(255.0f * clamp_to_unit(value)); }
uint8_t to_u8_round(float value) { return static_cast<uint8_t>(std::nearbyint(255.0f * clamp_to_unit(value))); }

namespace {

// By hand because the compiler does not vectorise the clamp, whose comparison might trap.
template <PixelRounding kRounding>
__m256i levels_of_8(const float* values) {
  const __m256 above_zero = _mm256_max_ps(_mm256_loadu_ps(values), _mm256_setzero_ps());  // the second where one is NaN
  const __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(255.0f), _mm256_min_ps(above_zero, _mm256_set1_ps(1.0f)));
  return kRounding == PixelRounding::kTruncate ? _mm256_cvttps_epi32(scaled) : _mm256_cvtps_epi32(scaled);
}

template <PixelRounding kRounding>
void convert(std::span<const float> values, uint8_t* bytes) {
  constexpr size_t kStep = 32;
  size_t i = 0;
  for (; i + kStep <= values.size(); i += kStep) {
    const float* from = values.data() + i;
    const __m256i a = _mm256_packs_epi32(levels_of_8<kRounding>(from), levels_of_8<kRounding>(from + 8));
    const __m256i b = _mm256_packs_epi32(levels_of_8<kRounding>(from + 16), levels_of_8<kRounding>(from + 24));
    // Both packs work in halves of 128 bits, which leaves groups of four in the order 0 2 4 6 1 3 5 7.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes + i), packed);
  }
  for (; i < values.size(); ++i) {
    bytes[i] = kRounding == PixelRounding::kTruncate ? to_u8_truncate(values[i]) : to_u8_round(values[i]);
  }
}

}  // namespace

void to_u8(PixelRounding rounding, std::span<const float> values, uint8_t* bytes) {
  if (rounding == PixelRounding::kTruncate) convert<PixelRounding::kTruncate>(values, bytes);
  else convert<PixelRounding::kRound>(values, bytes);
}

namespace {

bool names_folder(const std::filesystem::path& output) {
  std::error_code ignored;
  return extension_of(output).empty() || std::filesystem::is_directory(output, ignored);
}

bool is_pictures(const std::filesystem::path& output) { return names_folder(output) || extension_of(output) == ".png"; }

}  // namespace

void load_writer_of(const std::filesystem::path& output) {
  const std::string extension = extension_of(output);
  if (ffmpeg_writes(extension) || extension == ".gif") load_video_library();
}

void check_video_format(const std::filesystem::path& output, const VideoFormat& format) {
  if (format.width < 1 || format.width > kMaxSize || format.height < 1 || format.height > kMaxSize) {
    fail("{}: frames of {} x {} cannot be written; each side must be from 1 to {}", output.string(), format.width,
         format.height, kMaxSize);
  }
  if (!(format.fps > 0 && format.fps <= kMaxFps)) {
    fail("{}: {} frames per second cannot be written; it must be above 0 and at most {}", output.string(), format.fps,
         kMaxFps);
  }
  if (output.empty()) fail("the name of the video to write is empty");
  const std::string extension = extension_of(output);
  const bool folder = names_folder(output);
  if (!folder && ffmpeg_writes(extension)) return check_ffmpeg(output, extension, format);
  if (!folder && extension != ".png" && extension != ".gif") {
    fail(
        "{}: unknown extension '{}'; use .mp4, .mov, .webm, .webp, .gif, .png (with a number such as %04d for "
        "several), or a folder",
        output.string(), extension);
  }
  if (!format.codec.empty() || format.crf) {
    fail("{}: codec and crf are of .mp4, .mov and .webm; leave them out", output.string());
  }
}

std::vector<std::filesystem::path> files_of_clip(const std::filesystem::path& output, int64_t frames) {
  if (is_pictures(output)) return png_files(output, frames);
  return {output};
}

std::vector<std::filesystem::path> later_files(const std::filesystem::path& output, int64_t frames) {
  if (is_pictures(output)) return later_png_files(output, frames);
  return {};
}

int64_t encoder_bytes(const std::filesystem::path& output, const VideoFormat& format) {
  const std::string extension = extension_of(output);
  return names_folder(output) || !ffmpeg_writes(extension) ? 0 : ffmpeg_bytes(output, extension, format);
}

std::unique_ptr<FrameWriter> FrameWriter::open(const std::filesystem::path& output, const VideoFormat& format) {
  check_video_format(output, format);
  if (is_pictures(output)) return open_png(output, format);
  const std::string extension = extension_of(output);
  return extension == ".gif" ? open_gif(output, format) : open_ffmpeg(output, extension, format);
}

}  // namespace zoetrope::io

zoetrope::FrameSink::~FrameSink() = default;
void zoetrope::FrameSink::add_values(const float*) {}
zoetrope::PixelRounding zoetrope::FrameSink::rounding() const { return PixelRounding::kTruncate; }

zoetrope::OpenSink zoetrope::video_file(std::filesystem::path output) {
  return [output = std::move(output)](const VideoFormat& format) { return io::FrameWriter::open(output, format); };
}
