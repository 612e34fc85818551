#include "io/video_reader.h"

extern "C" {
#include <libavutil/display.h>
}

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "base/run_files.h"
#include "io/ffmpeg.h"
#include "io/image_codecs.h"

namespace zoetrope::io {

namespace {

// EXIF's orientation of a display matrix. A pixel of column p and row q appears in column m[0] p + m[3] q and row
// m[1] p + m[4] q, but for a translation, so of the four either the first and last matter, or the two between.
int orientation_of(const int32_t (&matrix)[9], const std::filesystem::path& path) {
  constexpr double kNearly = 1.0 / 64;  // a degree: smaller entries are rounding
  const double across = matrix[0], down_by_column = matrix[1], across_by_row = matrix[3], down = matrix[4];
  const double straight = std::min(std::abs(across), std::abs(down));
  const double turned = std::min(std::abs(down_by_column), std::abs(across_by_row));
  if (std::max(std::abs(down_by_column), std::abs(across_by_row)) < kNearly * straight) {
    if (down > 0) return across > 0 ? 1 : 2;
    return across > 0 ? 4 : 3;
  }
  if (std::max(std::abs(across), std::abs(down)) < kNearly * turned) {
    if (down_by_column > 0) return across_by_row > 0 ? 5 : 6;
    return across_by_row > 0 ? 8 : 7;
  }
  const double degrees = -av_display_rotation_get(matrix);
  if (std::isnan(degrees)) fail("{}: its display matrix leaves nothing of a frame to be seen", path.string());
  fail("{}: is to be seen turned by {:.0f} degrees, but videos are turned by 0, 90, 180 or 270 only", path.string(),
       degrees < 0 ? degrees + 360 : degrees);
}

class Decoder {
 public:
  explicit Decoder(std::filesystem::path path) : path_(std::move(path)) {
    silence_ffmpeg();
    const InputFile file(path_);  // on a pipe FFmpeg would wait for the writer
    AVDictionary* options = nullptr;
    av_dict_set(&options, "protocol_whitelist", "file", 0);  // a playlist must not reach the network
    const int code = avformat_open_input(&container_, ("file:" + path_.string()).c_str(), nullptr, &options);
    av_dict_free(&options);
    check_ffmpeg(code, path_, "be read as a picture or video");
    try {
      open_codec();
    } catch (...) {
      avformat_close_input(&container_);
      throw;
    }
  }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  ~Decoder() { avformat_close_input(&container_); }

  // False at the end.
  bool next(AVFrame* frame) {
    for (;;) {
      const int received = avcodec_receive_frame(context_.get(), frame);
      if (received >= 0) return true;
      if (received == AVERROR_EOF) return false;
      if (received != AVERROR(EAGAIN)) check_ffmpeg(received, path_, "be decoded");
      const int read = av_read_frame(container_, packet_.get());
      if (read == AVERROR_EOF) {
        check_ffmpeg(avcodec_send_packet(context_.get(), nullptr), path_, "be decoded");
        continue;
      }
      check_ffmpeg(read, path_, "be read to its end");
      const bool own = packet_->stream_index == stream_->index;
      const int sent = own ? avcodec_send_packet(context_.get(), packet_.get()) : 0;
      av_packet_unref(packet_.get());
      check_ffmpeg(sent, path_, "be decoded");
    }
  }

  // Counts the frames after those that next() returned. Counting packets would be faster, but packets are not frames: a
  // field may have one of its own, and some only hold references for later frames. Work on pixels is skipped, and
  // damage ends the count.
  int64_t count_rest() {
    context_->skip_loop_filter = context_->skip_idct = AVDISCARD_ALL;
    context_->err_recognition &= ~AV_EF_CRCCHECK;  // checksums of pixels that are not decoded
    const FFmpegPtr<AVFrame> frame(av_frame_alloc());
    int64_t count = 0;
    try {
      for (; next(frame.get()); ++count) av_frame_unref(frame.get());
    } catch (const Error&) {
    }
    return count;
  }

  // EXIF's orientation of this frame.
  int orientation(const AVFrame& frame) const {
    const AVFrameSideData* own = av_frame_get_side_data(&frame, AV_FRAME_DATA_DISPLAYMATRIX);
    const uint8_t* data = own != nullptr ? own->data : nullptr;
    if (data == nullptr) data = av_stream_get_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, nullptr);
    if (data == nullptr) return 1;
    int32_t matrix[9];
    std::memcpy(matrix, data, sizeof matrix);
    return orientation_of(matrix, path_);
  }

  double fps() const { return stream_->avg_frame_rate.den == 0 ? 0 : av_q2d(stream_->avg_frame_rate); }
  const AVDictionary* metadata() const { return container_->metadata; }

 private:
  void open_codec() {
    check_ffmpeg(avformat_find_stream_info(container_, nullptr), path_, "be read as a picture or video");
    const AVCodec* codec = nullptr;
    const int index = av_find_best_stream(container_, AVMEDIA_TYPE_VIDEO, -1, -1, &codec, 0);
    if (index == AVERROR_STREAM_NOT_FOUND) {
      fail("{}: holds no picture or video, only other streams such as sound", path_.string());
    }
    check_ffmpeg(index, path_, "be read as a picture or video");
    stream_ = container_->streams[index];
    context_.reset(avcodec_alloc_context3(codec));
    packet_.reset(av_packet_alloc());
    if (!context_ || !packet_) fail("{}: out of memory for the decoder", path_.string());
    check_ffmpeg(avcodec_parameters_to_context(context_.get(), stream_->codecpar), path_, "be decoded");
    context_->max_pixels = kMaxImagePixels;
    context_->err_recognition = AV_EF_CAREFUL | AV_EF_EXPLODE | AV_EF_CRCCHECK;  // damage is an error, not grey blocks
    check_ffmpeg(avcodec_open2(context_.get(), codec, nullptr), path_, "be decoded");
  }

  std::filesystem::path path_;
  AVFormatContext* container_ = nullptr;
  AVStream* stream_ = nullptr;
  FFmpegPtr<AVCodecContext> context_;
  FFmpegPtr<AVPacket> packet_;
};

// To packed RGB [H, W, 3] by the matrix and range that the frame states (JPEG: full range; untagged video: BT.601).
Tensor to_rgb(const AVFrame& frame, const std::filesystem::path& path) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const FFmpegPtr<SwsContext> scaler(
      sws_getContext(frame.width, frame.height, format, frame.width, frame.height, AV_PIX_FMT_RGB24,
                     SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, nullptr, nullptr, nullptr));
  if (!scaler) fail("{}: its pixel format cannot be converted to RGB", path.string());
  const int* matrix = sws_getCoefficients(frame.colorspace == AVCOL_SPC_BT709 ? SWS_CS_ITU709 : SWS_CS_DEFAULT);
  const int full_range = frame.color_range == AVCOL_RANGE_JPEG || format == AV_PIX_FMT_YUVJ420P ||
                         format == AV_PIX_FMT_YUVJ422P || format == AV_PIX_FMT_YUVJ444P;
  sws_setColorspaceDetails(scaler.get(), matrix, full_range, matrix, 1, 0, 1 << 16, 1 << 16);
  // swscale writes whole vectors: into padded rows, which are then packed.
  const FFmpegPtr<AVFrame> rgb = make_frame(AV_PIX_FMT_RGB24, frame.width, frame.height);
  sws_scale(scaler.get(), frame.data, frame.linesize, 0, frame.height, rgb->data, rgb->linesize);
  const int row = 3 * frame.width;
  Tensor packed = Tensor::uninitialized(DType::kU8, {frame.height, frame.width, 3});
  av_image_copy_plane(packed.data<uint8_t>(), row, rgb->data[0], rgb->linesize[0], row, frame.height);
  return packed;
}

// "frame2" before "frame10": runs of digits are compared as numbers.
bool in_order(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  const auto digits = [](const std::string& text, size_t from) {
    size_t end = from;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    return text.substr(from, end - from);
  };
  while (i < a.size() && j < b.size()) {
    std::string left = digits(a, i), right = digits(b, j);
    if (left.empty() || right.empty()) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i;
      ++j;
      continue;
    }
    i += left.size();
    j += right.size();
    left.erase(0, std::min(left.find_first_not_of('0'), left.size()));
    right.erase(0, std::min(right.find_first_not_of('0'), right.size()));
    if (left.size() != right.size()) return left.size() < right.size();
    if (left != right) return left < right;
  }
  return a.size() - i != b.size() - j ? a.size() - i < b.size() - j : a < b;
}

std::vector<std::filesystem::path> pictures_of(const std::filesystem::path& folder, const std::string& what) {
  std::vector<std::filesystem::path> pictures;
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  if (error) fail("{}{}: this folder cannot be read: {}", what, folder.string(), error.message());
  for (const auto& entry : entries) {
    std::string ending = entry.path().extension().string();
    std::transform(ending.begin(), ending.end(), ending.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    if (entry.is_regular_file(error) &&
        (ending == ".png" || ending == ".jpg" || ending == ".jpeg" || ending == ".webp")) {
      pictures.push_back(entry.path());
    }
  }
  if (pictures.empty()) fail("{}{}: this folder holds no .png, .jpg, .jpeg or .webp file", what, folder.string());
  std::sort(pictures.begin(), pictures.end(),
            [](const auto& a, const auto& b) { return in_order(a.filename().string(), b.filename().string()); });
  return pictures;
}

// Frames of one size, resized as they are read.
class ClipBuilder {
 public:
  ClipBuilder(const std::filesystem::path& path, int64_t frames, const std::string& what, const SizeRule& rule)
      : path_(path), frames_(frames), what_(what), rule_(rule) {}

  void require(int64_t available) const {
    if (available < frames_) {
      fail("{}{}: has {} frames, but {} are needed", what_, path_.string(), available, frames_);
    }
  }

  void add(const Tensor& image, const std::filesystem::path& file) {
    const ImageSize own{image.extent(0), image.extent(1)};
    if (next_ == 0) {
      clip_.own = own;
      target_ = rule_ ? rule_(own) : own;
      clip_.frames = Tensor::uninitialized(DType::kU8, {frames_, target_.height, target_.width, 3});
    }
    if (!(own == clip_.own)) {
      fail("{}{}: frame {} is {} x {}, but the first is {} x {}; all must have one size", what_, file.string(), next_,
           own.width, own.height, clip_.own.width, clip_.own.height);
    }
    const TensorView to = clip_.frames.view().select(0, next_++);
    const Tensor resized = target_ == own ? Tensor() : resize(image, target_, ResizeFilter::kLanczos);
    std::memcpy(to.raw(), resized ? resized.view().raw() : image.view().raw(), to.bytes());
  }

  ControlClip finish(int64_t available) {
    clip_.available = available;
    return std::move(clip_);
  }

 private:
  const std::filesystem::path& path_;
  int64_t frames_;
  const std::string& what_;
  const SizeRule& rule_;
  ControlClip clip_;
  ImageSize target_;
  int64_t next_ = 0;
};

}  // namespace

Clip read_clip(const std::filesystem::path& path, int64_t max_frames) {
  ZT_CHECK(max_frames > 0);
  Decoder decoder(path);
  const FFmpegPtr<AVFrame> frame(av_frame_alloc());
  std::vector<Tensor> frames;
  while (static_cast<int64_t>(frames.size()) < max_frames && decoder.next(frame.get())) {
    Tensor image = upright(to_rgb(*frame, path), decoder.orientation(*frame));
    if (!frames.empty() && !(image.shape() == frames.front().shape())) {
      fail("{}: frame {} is {} x {}, but the first is {} x {}; all must have one size", path.string(), frames.size(),
           image.extent(1), image.extent(0), frames.front().extent(1), frames.front().extent(0));
    }
    frames.push_back(std::move(image));
    av_frame_unref(frame.get());
  }
  if (frames.empty()) fail("{}: holds no frame", path.string());

  Clip clip;
  clip.fps = decoder.fps();
  for (const AVDictionaryEntry* tag = nullptr;
       (tag = av_dict_get(decoder.metadata(), "", tag, AV_DICT_IGNORE_SUFFIX));) {
    clip.metadata[tag->key] = tag->value;
  }
  const Tensor& first = frames.front();
  clip.frames =
      Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(frames.size()), first.extent(0), first.extent(1), 3});
  uint8_t* out = clip.frames.data<uint8_t>();
  for (const Tensor& image : frames) {
    std::memcpy(out, image.data<uint8_t>(), image.view().bytes());
    out += image.view().bytes();
  }
  return clip;
}

ControlClip read_control_clip(const std::filesystem::path& path, int64_t frames, const std::string& what,
                              const SizeRule& size) {
  ZT_CHECK(frames > 0);
  std::error_code ignored;
  ClipBuilder clip(path, frames, what, size);
  if (std::filesystem::is_directory(path, ignored)) {
    note_input_folder(path);
    const std::vector<std::filesystem::path> pictures = pictures_of(path, what);
    clip.require(static_cast<int64_t>(pictures.size()));
    for (size_t i = 0; i < static_cast<size_t>(frames); ++i) clip.add(read_image(pictures[i]), pictures[i]);
    return clip.finish(static_cast<int64_t>(pictures.size()));
  }
  Decoder decoder(path);
  const FFmpegPtr<AVFrame> frame(av_frame_alloc());
  int64_t count = 0;
  for (; count < frames && decoder.next(frame.get()); ++count) {
    clip.add(upright(to_rgb(*frame, path), decoder.orientation(*frame)), path);
    av_frame_unref(frame.get());
  }
  clip.require(count);
  return clip.finish(count + decoder.count_rest());
}

}  // namespace zoetrope::io
