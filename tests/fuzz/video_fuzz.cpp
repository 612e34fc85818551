// Videos: an MP4 box by box, whose lengths are set again, and other formats byte by byte.
#include <algorithm>

#include "fuzz.h"
#include "io/media/video_reader.h"

namespace zoetrope::fuzz {
namespace {

constexpr int64_t kFrames = 3;

void read(const std::string& bytes) {
  const io::Clip clip = io::read_clip(write("input", bytes), kFrames);
  touch(clip.frames.view().raw(), clip.frames.view().bytes());
}

constexpr size_t kBoxHeader = 8;

struct Box {
  std::string kind, data;
};

size_t length_at(std::string_view bytes, size_t at) {
  size_t length = 0;
  for (size_t i = 0; i < 4; ++i) length = length << 8 | static_cast<unsigned char>(bytes[at + i]);
  return length;
}

bool is_mp4(std::string_view bytes) { return bytes.size() >= kBoxHeader && bytes.substr(4, 4) == "ftyp"; }

// Box by box; what is none at the end goes into the last.
std::vector<Box> boxes_of(std::string_view bytes) {
  std::vector<Box> boxes;
  for (size_t at = 0; at + kBoxHeader <= bytes.size();) {
    const size_t length = std::clamp(length_at(bytes, at), kBoxHeader, bytes.size() - at);
    boxes.push_back(
        {std::string(bytes.substr(at + 4, 4)), std::string(bytes.substr(at + kBoxHeader, length - kBoxHeader))});
    at += length;
  }
  return boxes;
}

std::string joined(const std::vector<Box>& boxes) {
  std::string bytes;
  for (const Box& box : boxes) {
    const size_t length = box.data.size() + kBoxHeader;
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(length >> shift));
    bytes += box.kind + box.data;
  }
  return bytes;
}

std::string changed_boxes(const std::string& bytes, Dice& dice) {
  static const std::vector<std::string> folders = {"moov", "trak", "mdia", "minf", "dinf", "stbl", "edts", "udta"};
  std::vector<Box> boxes = boxes_of(bytes);
  if (boxes.empty()) return dice.changed(bytes);
  const size_t at = dice.below(boxes.size());
  Box& box = boxes[at];
  if (dice.one_in(48)) {
    boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (dice.one_in(48)) {
    boxes.push_back(Box(box));
  } else if (std::find(folders.begin(), folders.end(), box.kind) != folders.end()) {
    box.data = changed_boxes(box.data, dice);
  } else if (box.kind != "ftyp") {
    box.data = dice.changed(box.data);
  }
  return joined(boxes);
}

std::string change(const std::string& bytes, Dice& dice) {
  return is_mp4(bytes) ? changed_boxes(bytes, dice) : dice.changed(bytes);
}

}  // namespace

const Target kTarget{read, change, {"be read as a picture or video", "holds no picture or video"}};

}  // namespace zoetrope::fuzz
