#include <png.h>
#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/run_files.h"
#include "io/media/video_writers.h"

namespace zoetrope::io {

namespace {

namespace fs = std::filesystem;

constexpr size_t kHeaderBytes = 33;  // signature and IHDR, which must come first
constexpr int kMaxDigits = 9;

// "x%04d.png" in its parts; never passed to printf.
struct Numbering {
  std::string before, after;
  int digits = 1;

  std::string name(size_t index) const { return fmt::format("{}{:0{}}{}", before, index, digits, after); }
};

Numbering parse_pattern(const fs::path& path) {
  const std::string name = path.filename().string();
  const size_t percent = name.find('%');
  const size_t d = name.find_first_not_of("0123456789", percent + 1);
  Numbering numbering;
  const std::string width = d == std::string::npos ? "" : name.substr(percent + 1, d - percent - 1);
  if (!width.empty()) std::from_chars(width.data(), width.data() + width.size(), numbering.digits);
  const bool legal = d != std::string::npos && name[d] == 'd' && name.find('%', d) == std::string::npos &&
                     numbering.digits <= kMaxDigits && width.size() <= 2;
  if (!legal) {
    fail("{}: the number of a frame must be written once as %d or %0Nd with N up to {}, as in frame-%04d.png",
         path.string(), kMaxDigits);
  }
  numbering.digits = std::max(1, numbering.digits);
  numbering.before = name.substr(0, percent);
  numbering.after = name.substr(d + 1);
  return numbering;
}

// Where frames go, and their names.
struct FrameNames {
  explicit FrameNames(const fs::path& path) : folder(path.parent_path()) {
    std::error_code ignored;
    if (path.extension().empty() || fs::is_directory(path, ignored)) {
      is_folder = true;
      if (!path.filename().empty()) folder = path;
      numbering = {"", ".png", 4};
    } else if (path.filename().string().find('%') != std::string::npos) {
      numbering = parse_pattern(path);
    } else {
      numbering = {path.stem().string() + "-", path.extension().string(), 4};
      single = path;
    }
  }

  // Of a clip of `count` frames; 0: not known, and taken for several.
  fs::path frame(int64_t index, int64_t count) const {
    return is_numbered(count) ? folder / numbering.name(static_cast<size_t>(index)) : *single;
  }
  bool is_numbered(int64_t count) const { return !single || count != 1; }

  fs::path folder;
  bool is_folder = false;
  Numbering numbering;
  std::optional<fs::path> single;  // the name if only one frame comes
};

void append_be32(std::string& text, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) text.push_back(static_cast<char>(value >> shift));
}

// Type and data of an iTXt chunk (PNG specification, 11.3.3.4), uncompressed UTF-8. Keywords have 1 to 79 bytes.
std::string text_body(const std::string& key, const std::string& value) {
  std::string body = "iTXt";
  body += key.substr(0, 79);
  body.append(5, '\0');  // end of keyword, not compressed, method, no language, no translated keyword
  return body + value;
}

std::string text_chunk(const std::string& key, const std::string& value) {
  const std::string body = text_body(key, value);
  std::string chunk;
  append_be32(chunk, static_cast<uint32_t>(body.size() - 4));
  chunk += body;
  const auto* bytes = reinterpret_cast<const Bytef*>(body.data());
  append_be32(chunk, static_cast<uint32_t>(crc32(0, bytes, static_cast<uInt>(body.size()))));
  return chunk;
}

// The chunks that this program puts behind the header of a frame of its own; empty of any other file.
std::string tags_of(const fs::path& path) {
  constexpr size_t kAround = 12;  // length, type and CRC of a chunk
  constexpr size_t kMost = size_t{1} << 20;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return {};
  std::ifstream file(path, std::ios::binary);
  std::string tags, head(8, '\0');
  file.seekg(kHeaderBytes);
  while (file.read(head.data(), static_cast<std::streamsize>(head.size())) && head.ends_with("iTXt")) {
    size_t size = 0;
    for (size_t i = 0; i < 4; ++i) size = size << 8 | static_cast<uint8_t>(head[i]);
    if (size > kMost) return {};
    std::string rest(size + kAround - head.size(), '\0');
    if (!file.read(rest.data(), static_cast<std::streamsize>(rest.size()))) return {};
    tags += head + rest;
  }
  const std::string own = text_body("version", "zoetrope ");
  return tags.find(own) == std::string::npos ? "" : tags;
}

// Frames `index`, `index` + 1, … up to the first that is missing or has other tags than `tags`.
std::vector<fs::path> frames_with(const std::string& tags, const FrameNames& names, int64_t index, int64_t frames) {
  std::vector<fs::path> found;
  for (; !tags.empty() && tags_of(names.frame(index, frames)) == tags; ++index)
    found.push_back(names.frame(index, frames));
  return found;
}

// Of the old first frame; empty where there is none of this program.
std::string old_tags(const FrameNames& names, int64_t frames) {
  return frames > 0 && names.is_numbered(frames) ? tags_of(names.frame(0, frames)) : std::string();
}

// `file` [its first `size` bytes] becomes the PNG of these pixels. It keeps its length, so that one serves many frames.
void encode_png(const uint8_t* rgb, const VideoFormat& format, const fs::path& path, std::string& file, size_t& size) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(format.width);
  image.height = static_cast<png_uint_32>(format.height);
  image.format = PNG_FORMAT_RGB;
  file.resize(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t bytes = file.size();
  if (png_image_write_to_memory(&image, file.data(), &bytes, 0, rgb, 3 * format.width, nullptr) == 0) {
    fail("{}: cannot encode a frame: {}", path.string(), image.message);
  }
  size = bytes;
}

class PngWriter final : public FrameWriter {
 public:
  PngWriter(const fs::path& path, const VideoFormat& format) : FrameWriter(format), path_(path), names_(path) {
    if (names_.is_folder) made_folder_.emplace(names_.folder);
    // Tried now, so that an unwritable folder is known before the first frame is computed.
    check_writable(frame(0));
    for (int64_t i = 0; i < format.frames; ++i) check_spares_inputs(frame(i), frame(i));
    old_tags_ = old_tags(names_, format.frames);
    for (const fs::path& old : old_clip_from(format.frames)) check_spares_inputs(old, old);
    for (const auto& [key, value] : format.metadata) {
      if (!key.empty()) text_ += text_chunk(key, value);
    }
  }

  PixelRounding rounding() const override { return PixelRounding::kRound; }

  void add_frame(const uint8_t* rgb) override {
    size_t size = 0;
    encode_png(rgb, format_, path_, encoded_, size);
    ZT_CHECK(size > kHeaderBytes);
    AtomicFile file(frame(std::ssize(frames_)));
    file.write(encoded_.data(), kHeaderBytes);
    file.write(text_.data(), text_.size());
    file.write(encoded_.data() + kHeaderBytes, size - kHeaderBytes);
    file.close();
    frames_.push_back(std::move(file));
  }

  void finish() override {
    if (frames_.empty()) fail("{}: no frame was added, so there is nothing to write", path_.string());
    size_t done = 0;
    try {
      for (; done < frames_.size(); ++done) {
        frames_[done].commit_as(names_.frame(static_cast<int64_t>(done), std::ssize(frames_)));
      }
    } catch (...) {
      std::error_code ignored;
      for (size_t i = 0; i < done; ++i) fs::remove(frames_[i].path(), ignored);
      throw;
    }
    // They would be taken for the end of this clip.
    std::error_code ignored;
    for (const fs::path& old : old_clip_from(std::ssize(frames_))) fs::remove(old, ignored);
  }

 private:
  fs::path frame(int64_t index) const { return names_.frame(index, format_.frames); }
  std::vector<fs::path> old_clip_from(int64_t index) const {
    return frames_with(old_tags_, names_, index, format_.frames);
  }

  const fs::path path_;
  const FrameNames names_;
  std::optional<MadeFolder> made_folder_;  // before frames_, whose files must be gone when it is removed
  std::string text_;                       // metadata chunks, the same in every frame
  std::string old_tags_;
  std::string encoded_;             // a frame
  std::vector<AtomicFile> frames_;  // closed, under temporary names
};

}  // namespace

std::vector<fs::path> png_files(const fs::path& path, int64_t frames) {
  const FrameNames names(path);
  std::vector<fs::path> files;
  for (int64_t i = 0; i < frames; ++i) files.push_back(names.frame(i, frames));
  return files;
}

std::vector<fs::path> later_png_files(const fs::path& path, int64_t frames) {
  const FrameNames names(path);
  return frames_with(old_tags(names, frames), names, frames, frames);
}

std::unique_ptr<FrameWriter> open_png(const fs::path& path, const VideoFormat& format) {
  return std::make_unique<PngWriter>(path, format);
}

}  // namespace zoetrope::io
