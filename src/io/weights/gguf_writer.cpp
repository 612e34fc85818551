#include <array>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/index_range.h"
#include "io/weights/block_formats.h"
#include "io/weights/gguf.h"

namespace zoetrope::io {
namespace {

constexpr uint32_t kVersion = 3, kNumberType = 4, kTextType = 8;
constexpr int64_t kAlignment = 32;  // the format's own, where the metadata names none

template <typename T>
void append(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void append_text(std::string& bytes, std::string_view text) {
  append(bytes, uint64_t{text.size()});
  bytes += text;
}

uint64_t padded(uint64_t bytes) { return static_cast<uint64_t>(round_up(static_cast<int64_t>(bytes), kAlignment)); }

uint64_t bytes_of(const GgufStream::Entry& entry) {
  const auto elements = static_cast<uint64_t>(entry.shape.size());
  if (const BlockFormat* format = find_block_format(entry.type)) {
    const auto row = static_cast<uint64_t>(entry.shape[entry.shape.rank() - 1]);
    ZT_CHECK(row % format->elements == 0, "{}: rows of {} in blocks of {}", entry.name, row, format->elements);
    return elements / format->elements * format->bytes;
  }
  return elements * (entry.type == "F32" ? sizeof(float) : sizeof(uint16_t));
}

}  // namespace

std::string gguf_entry(std::string_view key, std::string_view text) {
  std::string bytes;
  append_text(bytes, key);
  append(bytes, kTextType);
  append_text(bytes, text);
  return bytes;
}

std::string gguf_entry(std::string_view key, uint32_t number) {
  std::string bytes;
  append_text(bytes, key);
  append(bytes, kNumberType);
  append(bytes, number);
  return bytes;
}

GgufStream::GgufStream(const std::filesystem::path& path, const std::vector<Entry>& entries,
                       const std::vector<std::string>& metadata)
    : file_(path) {
  std::string header(kGgufMagic);
  append(header, kVersion);
  append(header, uint64_t{entries.size()});
  append(header, uint64_t{metadata.size()});
  for (const std::string& entry : metadata) header += entry;
  uint64_t offset = 0;
  for (const Entry& entry : entries) {
    append_text(header, entry.name);
    append(header, static_cast<uint32_t>(entry.shape.rank()));
    for (int axis = entry.shape.rank() - 1; axis >= 0; --axis) append(header, static_cast<uint64_t>(entry.shape[axis]));
    append(header, gguf_type(entry.type));
    append(header, offset);
    missing_.push_back(bytes_of(entry));
    ZT_CHECK(missing_.back() > 0, "{}", entry.name);  // the format has no empty tensors
    offset += padded(missing_.back());
  }
  file_.write(header.data(), header.size());
  written_ = header.size();
  pad();
}

void GgufStream::write(const void* data, size_t bytes) {
  ZT_CHECK(tensor_ < missing_.size() && bytes <= missing_[tensor_], "{}: too many bytes", file_.path().string());
  file_.write(data, bytes);
  written_ += bytes;
  missing_[tensor_] -= bytes;
  if (missing_[tensor_] > 0) return;
  pad();
  ++tensor_;
}

void GgufStream::pad() {
  static constexpr std::array<char, kAlignment> kZeros{};
  const uint64_t missing = padded(written_) - written_;
  if (missing > 0) file_.write(kZeros.data(), missing);
  written_ += missing;
}

void GgufStream::commit() {
  ZT_CHECK(tensor_ == missing_.size(), "{}: {} tensors were not written", file_.path().string(),
           missing_.size() - tensor_);
  file_.commit();
}

}  // namespace zoetrope::io
