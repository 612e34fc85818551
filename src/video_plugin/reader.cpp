#include "video_plugin/reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace zoetrope::video_plugin {

Reader::Reader(const char* file, int64_t most_pixels) {
  AVDictionary* options = nullptr;
  av_dict_set(&options, "protocol_whitelist", "file", 0);  // a playlist must not reach the network
  const int code = avformat_open_input(&container_, ("file:" + std::string(file)).c_str(), nullptr, &options);
  av_dict_free(&options);
  check(code, "be read as a picture or video");
  try {
    open_codec(most_pixels);
  } catch (...) {
    avformat_close_input(&container_);
    throw;
  }
}

Reader::~Reader() { avformat_close_input(&container_); }

void Reader::open_codec(int64_t most_pixels) {
  check(avformat_find_stream_info(container_, nullptr), "be read as a picture or video");
  const AVCodec* codec = nullptr;
  const int index = av_find_best_stream(container_, AVMEDIA_TYPE_VIDEO, -1, -1, &codec, 0);
  if (index == AVERROR_STREAM_NOT_FOUND) {
    throw std::runtime_error("holds no picture or video, only other streams such as sound");
  }
  check(index, "be read as a picture or video");
  stream_ = container_->streams[index];
  decoder_.reset(avcodec_alloc_context3(codec));
  packet_.reset(av_packet_alloc());
  frame_.reset(av_frame_alloc());
  if (!decoder_ || !packet_ || !frame_) throw std::bad_alloc();
  check(avcodec_parameters_to_context(decoder_.get(), stream_->codecpar), "be decoded");
  decoder_->max_pixels = most_pixels;
  decoder_->err_recognition = AV_EF_CAREFUL | AV_EF_EXPLODE | AV_EF_CRCCHECK;  // damage is an error, not grey blocks
  check(avcodec_open2(decoder_.get(), codec, nullptr), "be decoded");
}

double Reader::fps() const { return stream_->avg_frame_rate.den == 0 ? 0 : av_q2d(stream_->avg_frame_rate); }

bool Reader::tag(int index, const char** key, const char** value) const {
  const AVDictionaryEntry* entry = nullptr;
  for (int i = 0; i <= index; ++i) {
    entry = av_dict_get(container_->metadata, "", entry, AV_DICT_IGNORE_SUFFIX);
    if (entry == nullptr) return false;
  }
  *key = entry->key;
  *value = entry->value;
  return true;
}

bool Reader::decode() {
  for (;;) {
    const int received = avcodec_receive_frame(decoder_.get(), frame_.get());
    if (received >= 0) return true;
    if (received == AVERROR_EOF) {
      check_whole();
      return false;
    }
    if (received != AVERROR(EAGAIN)) check(received, "be decoded");
    const int read = av_read_frame(container_, packet_.get());
    if (read == AVERROR_EOF) {
      check(avcodec_send_packet(decoder_.get(), nullptr), "be decoded");
      continue;
    }
    check(read, "be read to its end");
    const bool own = packet_->stream_index == stream_->index;
    const int sent = own ? avcodec_send_packet(decoder_.get(), packet_.get()) : 0;
    av_packet_unref(packet_.get());
    check(sent, "be decoded");
  }
}

namespace {

// A number of Matroska (RFC 8794): the zeros in front of its first bit say how many bytes follow. −1 where all its bits
// are set, which says that a size is not known.
int64_t matroska_number(AVIOContext* file) {
  const auto first = static_cast<unsigned>(avio_r8(file));
  const int more = std::countl_zero(static_cast<uint8_t>(first));
  if (more > 7) return -1;  // none
  uint64_t value = first & (0x7fu >> more), most = 0x7fu >> more;
  for (int i = 0; i < more; ++i) {
    value = value << 8 | static_cast<unsigned>(avio_r8(file));
    most = most << 8 | 0xff;
  }
  return value == most ? -1 : static_cast<int64_t>(value);
}

// Where the header says that the file ends; 0 where it does not.
int64_t end_of_matroska(AVIOContext* file) {
  constexpr unsigned kHeader = 0x1A45DFA3, kSegment = 0x18538067;
  if (avio_seek(file, 0, SEEK_SET) < 0 || avio_rb32(file) != kHeader) return 0;
  if (avio_skip(file, matroska_number(file)) < 0 || avio_rb32(file) != kSegment) return 0;
  const int64_t size = matroska_number(file);
  return size < 0 ? 0 : avio_tell(file) + size;
}

}  // namespace

// Where a file was cut off between two packets, FFmpeg reports its end. The index of an MP4 may be in front; that of
// a Matroska is behind, but its header has the size.
void Reader::check_whole() const {
  if (end_of_matroska(container_->pb) > avio_size(container_->pb))
    throw std::runtime_error("ends before its last frame");
  const int last = avformat_index_get_entries_count(stream_) - 1;
  const AVIndexEntry* packet = avformat_index_get_entry(stream_, last);
  if (packet != nullptr && packet->pos + packet->size > avio_size(container_->pb)) {
    throw std::runtime_error("ends before its last frame");
  }
}

namespace {

// The alpha of a row of pixels. Of a format with one it is the last component.
void read_alpha(const AVFrame& frame, const AVPixFmtDescriptor& parts, int y, std::vector<uint32_t>& alpha) {
  if ((parts.flags & AV_PIX_FMT_FLAG_PAL) != 0) {
    constexpr int kAlphaByte = 24;  // of a colour, 0xAARRGGBB
    const auto* palette = reinterpret_cast<const uint32_t*>(frame.data[1]);
    const uint8_t* row = frame.data[0] + y * ptrdiff_t{frame.linesize[0]};
    std::transform(row, row + frame.width, alpha.begin(),
                   [palette](uint8_t index) { return palette[index] >> kAlphaByte; });
    return;
  }
  const uint8_t* planes[4] = {frame.data[0], frame.data[1], frame.data[2], frame.data[3]};
  const int last = parts.nb_components - 1;
  av_read_image_line2(alpha.data(), planes, frame.linesize, &parts, 0, y, last, frame.width, 0, sizeof(uint32_t));
}

bool is_transparent(const AVFrame& frame) {
  const AVPixFmtDescriptor& parts = *av_pix_fmt_desc_get(static_cast<AVPixelFormat>(frame.format));
  if ((parts.flags & AV_PIX_FMT_FLAG_ALPHA) == 0) return false;
  // Positive floating-point numbers are in the order of their bits.
  constexpr uint32_t kOne = 0x3f800000, kOneAsHalf = 0x3c00;
  const int depth = parts.comp[parts.nb_components - 1].depth;
  const bool floats = (parts.flags & AV_PIX_FMT_FLAG_FLOAT) != 0;
  const uint32_t opaque = !floats ? (uint32_t{1} << depth) - 1 : depth == 16 ? kOneAsHalf : kOne;
  std::vector<uint32_t> alpha(static_cast<size_t>(frame.width));
  for (int y = 0; y < frame.height; ++y) {
    read_alpha(frame, parts, y, alpha);
    if (std::any_of(alpha.begin(), alpha.end(), [opaque](uint32_t value) { return value < opaque; })) return true;
  }
  return false;
}

}  // namespace

bool Reader::next_frame(VideoPluginFrame& frame) {
  if (!decode()) return false;
  convert();
  get_matrix(frame);
  frame.hdr = frame_->color_trc == AVCOL_TRC_SMPTE2084 || frame_->color_trc == AVCOL_TRC_ARIB_STD_B67 ? 1 : 0;
  frame.transparent = is_transparent(*frame_) ? 1 : 0;
  const AVRational pixel = av_guess_sample_aspect_ratio(container_, stream_, frame_.get());
  frame.pixel_width = pixel.num;
  frame.pixel_height = pixel.den;
  frame.rgb = rgb_->data[0];
  frame.stride = rgb_->linesize[0];
  frame.width = rgb_->width;
  frame.height = rgb_->height;
  av_frame_unref(frame_.get());
  return true;
}

namespace {

// Without a range that is stated, JPEG and grey have the full one, as swscale itself has it for both.
bool has_full_range(const AVFrame& frame) {
  const auto format = static_cast<AVPixelFormat>(frame.format);
  if (format == AV_PIX_FMT_YUVJ420P || format == AV_PIX_FMT_YUVJ422P || format == AV_PIX_FMT_YUVJ444P) return true;
  if (frame.color_range != AVCOL_RANGE_UNSPECIFIED) return frame.color_range == AVCOL_RANGE_JPEG;
  const AVPixFmtDescriptor* parts = av_pix_fmt_desc_get(format);
  return parts->nb_components <= 2 && (parts->flags & (AV_PIX_FMT_FLAG_RGB | AV_PIX_FMT_FLAG_PAL)) == 0;
}

}  // namespace

// By the matrix and range that the frame states (untagged video: BT.601).
void Reader::convert() {
  const AVFrame& frame = *frame_;
  const auto format = static_cast<AVPixelFormat>(frame.format);
  const FFmpegPtr<SwsContext> scaler(
      sws_getContext(frame.width, frame.height, format, frame.width, frame.height, AV_PIX_FMT_RGB24,
                     SWS_BICUBIC | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, nullptr, nullptr, nullptr));
  if (!scaler) throw std::runtime_error("its pixel format cannot be converted to RGB");
  const int* matrix = sws_getCoefficients(frame.colorspace);  // numbered alike; unknown ones are BT.601
  sws_setColorspaceDetails(scaler.get(), matrix, has_full_range(frame) ? 1 : 0, matrix, 1, 0, 1 << 16, 1 << 16);
  rgb_ = make_frame(AV_PIX_FMT_RGB24, frame.width, frame.height);
  sws_scale(scaler.get(), frame.data, frame.linesize, 0, frame.height, rgb_->data, rgb_->linesize);
}

void Reader::get_matrix(VideoPluginFrame& frame) const {
  const AVFrameSideData* own = av_frame_get_side_data(frame_.get(), AV_FRAME_DATA_DISPLAYMATRIX);
  const uint8_t* data = own != nullptr ? own->data : nullptr;
  if (data == nullptr) data = av_stream_get_side_data(stream_, AV_PKT_DATA_DISPLAYMATRIX, nullptr);
  frame.turned = data != nullptr ? 1 : 0;
  if (data != nullptr) std::memcpy(frame.matrix, data, sizeof frame.matrix);
}

// Counting packets would be faster, but packets are not frames: a field may have one of its own, and some only hold
// references for later frames.
void Reader::count_rest(int64_t& count) {
  decoder_->skip_loop_filter = decoder_->skip_idct = AVDISCARD_ALL;
  decoder_->err_recognition &= ~AV_EF_CRCCHECK;  // checksums of pixels that are not decoded
  for (; decode(); ++count) av_frame_unref(frame_.get());
}

}  // namespace zoetrope::video_plugin
