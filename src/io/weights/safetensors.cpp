#include "io/weights/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/index_range.h"
#include "base/json.h"

namespace zoetrope::io {

using nlohmann::json;

namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMetadataKey = "__metadata__";

struct StoredType {
  const char* name;
  int bits;
  std::optional<DType> dtype;
};

// Every dtype of the format; those without a DType can only be listed.
constexpr StoredType kStoredTypes[] = {
    {"F64", 64, DType::kF64},
    {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},
    {"BF16", 16, DType::kBF16},
    {"I64", 64, DType::kI64},
    {"I32", 32, DType::kI32},
    {"U8", 8, DType::kU8},
    {"BOOL", 8, DType::kBool},
    {"I16", 16, std::nullopt},
    {"I8", 8, std::nullopt},
    {"U64", 64, std::nullopt},
    {"U32", 32, std::nullopt},
    {"U16", 16, std::nullopt},
    {"C64", 64, std::nullopt},
    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
    {"F4", 4, std::nullopt},
};

const StoredType* find_stored_type(const std::string& name) {
  for (const StoredType& type : kStoredTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

// Reads one tensor's header entry into a TensorInfo. `where` is "FILE: tensor 'NAME'".
class Entry {
 public:
  Entry(const json& entry, std::string where) : entry_(entry), where_(std::move(where)) {
    if (!entry_.is_object()) fail("{}: its header entry must be an object with dtype, shape and data_offsets", where_);
  }

  TensorInfo read(uint64_t data_start) const {
    TensorInfo info;
    const StoredType& type = read_type();
    info.dtype_name = type.name;
    info.dtype = type.dtype;
    const std::vector<int64_t> extents = read_extents();
    const std::string shape = fmt::format("[{}]", fmt::join(extents, ", "));
    info.bytes = byte_count(extents, shape, type);
    info.set_extents(extents);
    const auto [begin, end] = read_offsets();
    if (end - begin != info.bytes) {
      fail("{}: shape {} of {} takes {} bytes, but data_offsets [{}, {}] span {}", where_, shape, type.name, info.bytes,
           begin, end, end - begin);
    }
    info.offset = data_start + begin;  // cannot overflow: both are below 2^63
    info.aligned = info.offset % std::max<uint64_t>(1, static_cast<uint64_t>(type.bits) / 8) == 0;
    return info;
  }

 private:
  const json& field(const char* key, json::value_t kind, const char* wanted) const {
    const auto found = entry_.find(key);
    if (found == entry_.end()) fail("{}: has no '{}' in the header; it must be {}", where_, key, wanted);
    if (found->type() != kind) fail("{}: '{}' in the header must be {}", where_, key, wanted);
    return *found;
  }

  // Below 2^63, so that sums of two cannot overflow.
  uint64_t natural(const json& value, const char* key) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      fail("{}: {} in '{}' must be an integer from 0 to 2^63 - 1", where_, json_text(value), key);
    }
    return value.get<uint64_t>();
  }

  const StoredType& read_type() const {
    const std::string name = field("dtype", json::value_t::string, "a string").get<std::string>();
    const StoredType* type = find_stored_type(name);
    if (type == nullptr) {
      std::string legal;
      for (const StoredType& known : kStoredTypes) legal += fmt::format("{}{}", legal.empty() ? "" : ", ", known.name);
      fail("{}: unknown dtype '{}'; the format has {}", where_, name, legal);
    }
    return *type;
  }

  std::vector<int64_t> read_extents() const {
    std::vector<int64_t> extents;
    for (const json& extent : field("shape", json::value_t::array, "a list of integers")) {
      extents.push_back(static_cast<int64_t>(natural(extent, "shape")));
    }
    return extents;
  }

  uint64_t byte_count(const std::vector<int64_t>& extents, const std::string& shape, const StoredType& type) const {
    // The product without zeros is checked too: strides are made of it.
    int64_t bits = type.bits;
    bool empty = false;
    for (const int64_t extent : extents) {
      empty |= extent == 0;
      if (__builtin_mul_overflow(bits, std::max<int64_t>(1, extent), &bits)) {
        fail("{}: shape {} is too large, its size overflows 64 bits", where_, shape);
      }
    }
    if (empty) return 0;
    if (bits % 8 != 0) fail("{}: shape {} of {} does not fill whole bytes", where_, shape, type.name);
    return static_cast<uint64_t>(bits) / 8;
  }

  std::pair<uint64_t, uint64_t> read_offsets() const {
    const json& offsets = field("data_offsets", json::value_t::array, "a pair of integers");
    if (offsets.size() != 2) fail("{}: 'data_offsets' must be a pair [begin, end]", where_);
    const uint64_t begin = natural(offsets[0], "data_offsets");
    const uint64_t end = natural(offsets[1], "data_offsets");
    if (begin > end) fail("{}: data_offsets [{}, {}] are reversed; begin must not be above end", where_, begin, end);
    return {begin, end};
  }

  const json& entry_;
  std::string where_;
};

// Tensors must not overlap, and the last must end where the file ends. Gaps are legal: docs/spec/weights.md, 4.1.
void check_coverage(const std::string& file, const TensorHeader& header, uint64_t file_size) {
  header.check_overlaps(file);
  uint64_t end = header.bytes;
  const std::string* last = nullptr;
  for (const auto& [name, info] : header.tensors) {
    if (info.offset + info.bytes <= end) continue;
    end = info.offset + info.bytes;
    last = &name;
  }
  if (end > file_size) {
    fail("{}: is truncated: {} bytes are missing (its header describes {} bytes, the file has {}; tensor '{}' is cut)",
         file, end - file_size, end, file_size, *last);
  }
  if (end < file_size) {
    fail("{}: has {} bytes after its last tensor that belong to none; the file must end there", file, file_size - end);
  }
}

}  // namespace

TensorHeader read_safetensors_header(std::string_view contents, const std::string& file) {
  if (contents.size() < kLengthBytes) {
    fail("{}: has {} bytes, but a safetensors file starts with 8 bytes of header length", file, contents.size());
  }
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= uint64_t{static_cast<unsigned char>(contents[i])} << (8 * i);
  if (length > kMaxHeaderBytes || length > contents.size() - kLengthBytes) {
    fail(
        "{}: claims a header of {} bytes in a file of {} bytes (and at most {} are allowed), so it is truncated or "
        "not a safetensors file",
        file, length, contents.size(), kMaxHeaderBytes);
  }
  TensorHeader header;
  header.container = "safetensors";
  header.bytes = kLengthBytes + length;
  const std::string_view text = contents.substr(kLengthBytes, length);
  if (text.empty() || text.front() != '{') fail("{}: its header must be a JSON object, opening with '{{'", file);
  const json entries = parse_json(text, file + ": header");
  for (const auto& [name, entry] : entries.items()) {
    if (name != kMetadataKey) {
      header.tensors[name] = Entry(entry, fmt::format("{}: tensor '{}'", file, name)).read(header.bytes);
      continue;
    }
    if (!entry.is_object()) fail("{}: {} must be an object of strings", file, kMetadataKey);
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail("{}: {} key '{}' must be a string", file, kMetadataKey, key);
      header.metadata[key] = value.get<std::string>();
    }
  }
  check_coverage(file, header, contents.size());
  return header;
}

SafetensorsStream::SafetensorsStream(const std::filesystem::path& path, std::vector<Entry> entries,
                                     const std::map<std::string, std::string>& metadata, Order order)
    : file_(path), entries_(std::move(entries)) {
  if (order == Order::kBySize) sort_by_size(entries_);
  json header = json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  for (const Entry& entry : entries_) {
    json extents = json::array();
    for (int axis = 0; axis < entry.shape.rank(); ++axis) extents.push_back(entry.shape[axis]);
    const uint64_t end = missing_ + entry.bytes();
    const char* type = entry.type == nullptr ? dtype_name(entry.dtype) : entry.type;
    ZT_CHECK(find_stored_type(type) != nullptr, "{}", type);
    header[entry.name] = {{"dtype", type}, {"shape", extents}, {"data_offsets", {missing_, end}}};
    missing_ = end;
  }
  // JSON cannot hold text that is not UTF-8; metadata comes from users, so it is repaired rather than refused.
  std::string text = json_text(header);
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), 8)), ' ');
  unsigned char length[kLengthBytes];
  for (uint64_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<unsigned char>(uint64_t{text.size()} >> (8 * i));
  file_.write(length, sizeof length);
  file_.write(text.data(), text.size());
}

void SafetensorsStream::sort_by_size(std::vector<Entry>& entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return dtype_size(a.dtype) > dtype_size(b.dtype); });
}

void SafetensorsStream::write(const void* data, size_t bytes) {
  ZT_CHECK(bytes <= missing_, "{}: {} bytes too many", file_.path().string(), bytes - missing_);
  file_.write(data, bytes);
  missing_ -= bytes;
}

void SafetensorsStream::close() {
  ZT_CHECK(missing_ == 0, "{}: {} bytes too few", file_.path().string(), missing_);
  file_.close();
}

void SafetensorsStream::commit() {
  close();
  file_.commit();
}

namespace {

// The elements of `tensor` in row-major order, whatever its strides, through a buffer of at most 1 MiB.
void write_elements(SafetensorsStream& file, const TensorView& tensor) {
  if (tensor.size() == 0) return;
  if (tensor.contiguous()) return file.write(tensor.raw(), tensor.bytes());
  if (tensor.rank() > 1) {
    for (int64_t i = 0; i < tensor.extent(0); ++i) write_elements(file, tensor.select(0, i));
    return;
  }
  constexpr int64_t kChunk = int64_t{1} << 17;
  const size_t element = dtype_size(tensor.dtype());
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(kChunk, tensor.size())) * element);
  for (int64_t begin = 0; begin < tensor.size(); begin += kChunk) {
    const TensorView part = tensor.slice(0, begin, std::min(tensor.size(), begin + kChunk));
    for (int64_t i = 0; i < part.size(); ++i) {
      std::memcpy(buffer.data() + static_cast<size_t>(i) * element, part.select(0, i).raw(), element);
    }
    file.write(buffer.data(), part.bytes());
  }
}

}  // namespace

void SafetensorsWriter::add(const std::string& name, const TensorView& tensor) {
  if (name == kMetadataKey) fail("a tensor cannot be named '{}': the format keeps this name", name);
  if (!tensors_.emplace(name, tensor).second) fail("tensor '{}' is added twice to one safetensors file", name);
}

void SafetensorsWriter::set_metadata(const std::string& key, const std::string& value) { metadata_[key] = value; }

void SafetensorsWriter::write(const std::filesystem::path& path) const { prepare(path).commit(); }

SafetensorsStream SafetensorsWriter::prepare(const std::filesystem::path& path) const {
  std::vector<SafetensorsStream::Entry> entries;
  for (const auto& [name, tensor] : tensors_) entries.push_back({name, tensor.dtype(), tensor.shape(), nullptr});
  SafetensorsStream stream(path, std::move(entries), metadata_);
  for (const SafetensorsStream::Entry& entry : stream.entries()) write_elements(stream, tensors_.at(entry.name));
  stream.close();
  return stream;
}

}  // namespace zoetrope::io
