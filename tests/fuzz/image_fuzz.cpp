// PNG by chunks, whose checksums are set again, and JPEG by segments. Image data of PNGs that is stored uncompressed is
// changed in place and its checksum set, so that the filters of its rows are reached.
#include <algorithm>
#include <array>
#include <optional>

#include "fuzz.h"
#include "io/media/image.h"

namespace zoetrope::fuzz {
namespace {

constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n";
constexpr std::string_view kJpeg = "\xFF\xD8";

void read(const std::string& bytes) {
  const Tensor image = io::read_image(write("input", bytes));
  touch(image.view().raw(), image.view().bytes());
}

uint32_t big_endian(std::string_view bytes, size_t at, size_t count) {
  uint32_t value = 0;
  for (size_t i = 0; i < count; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

std::string big_endian(uint64_t value, size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[count - 1 - i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

uint32_t crc32(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

uint32_t adler32(std::string_view bytes) {
  uint32_t a = 1, b = 0;
  for (const char c : bytes) {
    a = (a + static_cast<unsigned char>(c)) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

// What a zlib stream of one stored block holds; nothing where it is another stream.
std::optional<std::string> stored(std::string_view stream) {
  constexpr size_t kAround = 11;  // header of the stream and of the block, checksum
  if (stream.size() < kAround || stream.substr(0, 3) != std::string_view("\x78\x01\x01", 3)) return std::nullopt;
  return std::string(stream.substr(7, stream.size() - kAround));
}

std::string as_stored(std::string_view data) {
  data = data.substr(0, UINT16_MAX);
  const auto low_first = [](uint64_t value) {
    return std::string{static_cast<char>(value), static_cast<char>(value >> 8)};
  };
  return std::string("\x78\x01\x01", 3) + low_first(data.size()) + low_first(~data.size()) + std::string(data) +
         big_endian(adler32(data), 4);
}

// A chunk or a segment; of JPEG's image data, which has no length, with the segment before it.
struct Piece {
  std::string kind, data, behind = {};
};

std::vector<Piece> png_pieces(std::string_view bytes) {
  std::vector<Piece> pieces;
  for (size_t at = kPng.size(); at + 12 <= bytes.size();) {
    const size_t count = std::min<size_t>(big_endian(bytes, at, 4), bytes.size() - at - 12);
    pieces.push_back({std::string(bytes.substr(at + 4, 4)), std::string(bytes.substr(at + 8, count))});
    at += 12 + count;
  }
  return pieces;
}

std::string png(const std::vector<Piece>& pieces) {
  std::string bytes(kPng);
  for (const Piece& piece : pieces) {
    bytes += big_endian(piece.data.size(), 4) + piece.kind + piece.data + big_endian(crc32(piece.kind + piece.data), 4);
  }
  return bytes;
}

std::vector<Piece> jpeg_pieces(std::string_view bytes) {
  std::vector<Piece> pieces;
  for (size_t at = kJpeg.size(); at + 4 <= bytes.size();) {
    const size_t count = std::min<size_t>(std::max<uint32_t>(big_endian(bytes, at + 2, 2), 2), bytes.size() - at - 2);
    Piece piece{std::string(bytes.substr(at, 2)), std::string(bytes.substr(at + 4, count - 2))};
    at += 2 + count;
    const size_t begin = at;
    while (at < bytes.size() && (bytes[at] != '\xFF' || at + 1 == bytes.size() || bytes[at + 1] == 0)) ++at;
    piece.behind = bytes.substr(begin, at - begin);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::string jpeg(const std::vector<Piece>& pieces) {
  std::string bytes(kJpeg);
  for (const Piece& piece : pieces) {
    bytes += piece.kind + big_endian(piece.data.size() + 2, 2) + piece.data + piece.behind;
  }
  return bytes + "\xFF\xD9";
}

void change_piece(Piece& piece, Dice& dice) {
  static const std::vector<uint64_t> sizes = {0,   1,     2,     7,          8,          255,
                                              256, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
  const std::optional<std::string> raw = piece.kind == "IDAT" ? stored(piece.data) : std::nullopt;
  if (raw) {
    piece.data = as_stored(dice.changed(*raw));
  } else if (piece.kind == "IHDR" && piece.data.size() >= 13 && dice.one_in(2)) {
    if (dice.one_in(2)) piece.data.replace(4 * dice.below(2), 4, big_endian(dice.pick(sizes), 4));
    else piece.data[8 + dice.below(5)] = static_cast<char>(dice.below(17));
  } else if (!piece.behind.empty() && dice.one_in(2)) {
    piece.behind = dice.changed(piece.behind);
    if (piece.behind.find("\xFF\xDA") != std::string::npos) piece.behind.clear();
  } else {
    piece.data = dice.changed(piece.data);
    if (piece.data.size() > UINT16_MAX - 2) piece.data.clear();
  }
}

void change_pieces(std::vector<Piece>& pieces, Dice& dice) {
  static const std::vector<std::string> chunks = {"IHDR", "PLTE", "IDAT", "IEND", "tRNS",
                                                  "gAMA", "acTL", "eXIf", "zTXt"};
  if (pieces.empty()) return;
  const size_t at = dice.below(pieces.size());
  switch (dice.below(12)) {
    case 0:
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(dice.below(pieces.size())), Piece(pieces[at]));
      break;
    case 2:
      std::swap(pieces[at], pieces[dice.below(pieces.size())]);
      break;
    case 3:
      if (pieces[at].kind.size() == 4) pieces[at].kind = dice.pick(chunks);
      else pieces[at].kind[1] = static_cast<char>(0xC0 + dice.below(0x30));
      break;
    default:
      change_piece(pieces[at], dice);
  }
}

std::string change(const std::string& bytes, Dice& dice) {
  if (dice.one_in(16)) return dice.changed(bytes);
  const bool is_png = bytes.starts_with(kPng), is_jpeg = bytes.starts_with(kJpeg);
  if (!is_png && !is_jpeg) {  // one grey pixel
    return png({{"IHDR", std::string("\0\0\0\1\0\0\0\1\10\0\0\0\0", 13)},
                {"IDAT", as_stored(std::string(2, '\0'))},
                {"IEND", ""}});
  }
  std::vector<Piece> pieces = is_png ? png_pieces(bytes) : jpeg_pieces(bytes);
  change_pieces(pieces, dice);
  return is_png ? png(pieces) : jpeg(pieces);
}

}  // namespace

const Target kTarget{read, change, {"is not a picture"}};

}  // namespace zoetrope::fuzz
