#include "io/weights/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "io/weights/block_formats.h"

namespace zoetrope::io {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they are stored");

struct StoredType {
  uint32_t id;
  const char* name;
  std::optional<DType> dtype = std::nullopt;
};

// docs/spec/weights.md, section 5.2. Those without a DType are in blocks (block_formats.h), or known by name only.
constexpr StoredType kStoredTypes[] = {
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0"},
    {3, "Q4_1"},
    {6, "Q5_0"},
    {7, "Q5_1"},
    {8, "Q8_0"},
    {9, "Q8_1"},
    {10, "Q2_K"},
    {11, "Q3_K"},
    {12, "Q4_K"},
    {13, "Q5_K"},
    {14, "Q6_K"},
    {15, "Q8_K"},
    {16, "IQ2_XXS"},
    {17, "IQ2_XS"},
    {18, "IQ3_XXS"},
    {19, "IQ1_S"},
    {20, "IQ4_NL"},
    {21, "IQ3_S"},
    {22, "IQ2_S"},
    {23, "IQ4_XS"},
    {24, "I8"},
    {25, "I16"},
    {26, "I32"},
    {27, "I64"},
    {28, "F64"},
    {29, "IQ1_M"},
    {30, "BF16", DType::kBF16},
    {34, "TQ1_0"},
    {35, "TQ2_0"},
    {39, "MXFP4"},
    {40, "NVFP4"},
    {41, "Q1_0"},
};

enum ValueType : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9, kFloat64 = 12 };

struct ScalarType {
  const char* name;
  uint64_t bytes;  // 0: not of a fixed size
};
// By the number in the file.
constexpr ScalarType kScalarTypes[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},    {"u32", 4},
                                       {"i32", 4}, {"f32", 4}, {"bool", 1}, {"string", 0}, {"array", 0},
                                       {"u64", 8}, {"i64", 8}, {"f64", 8}};

constexpr uint64_t kLeastEntryBytes = 13, kLeastTensorBytes = 24;  // of metadata and of a tensor's description
constexpr uint64_t kMostAxes = 8, kLongestName = 1024;
constexpr const char* kAlignment = "general.alignment";
constexpr uint64_t kDefaultAlignment = 32;
// Before a tensor's name: its true shape, where it has more axes than the format had when the file was written.
constexpr const char* kOriginalShape = "comfy.gguf.orig_shape.";

class Reader {
 public:
  Reader(std::string_view contents, const std::string& file) : contents_(contents), file_(file) {}

  TensorHeader read() {
    if (contents_.empty()) fail("{}: is empty", file_);
    if (!contents_.starts_with(kGgufMagic))
      fail("{}: is not a GGUF file: it does not start with '{}'", file_, kGgufMagic);
    at_ = kGgufMagic.size();
    read_version();
    const uint64_t tensors = number<uint64_t>("the number of tensors");
    const uint64_t entries = number<uint64_t>("the number of metadata entries");
    require_left(entries, kLeastEntryBytes, "metadata entries");
    for (uint64_t i = 0; i < entries; ++i) read_entry();
    require_left(tensors, kLeastTensorBytes, "tensors");
    for (uint64_t i = 0; i < tensors; ++i) read_tensor();
    place_tensors();
    return std::move(header_);
  }

 private:
  uint64_t left() const { return contents_.size() - at_; }

  std::string_view take(uint64_t bytes, const std::string& what) {
    if (bytes > left()) {
      fail("{}: header is damaged: {} takes {} bytes, but {} are left in the file", file_, what, bytes, left());
    }
    const std::string_view taken = contents_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }

  template <typename T>
  T number(const std::string& what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  std::string text(const std::string& what) {
    const auto bytes = number<uint64_t>("the length of " + what);
    return std::string(take(bytes, what));
  }

  void require_left(uint64_t count, uint64_t least_bytes, const char* what) const {
    if (count > left() / least_bytes) {
      fail("{}: header is damaged: it announces {} {}, but {} bytes are left in the file", file_, count, what, left());
    }
  }

  void read_version() {
    const auto version = number<uint32_t>("the version");
    if ((version & 0xFFFF) == 0) fail("{}: is a big-endian GGUF file; a little-endian one is needed", file_);
    if (version != 2 && version != 3) fail("{}: is GGUF of version {}; versions 2 and 3 can be read", file_, version);
    header_.container = fmt::format("GGUF {}", version);
  }

  const ScalarType& value_type(const std::string& key, uint32_t type) const {
    if (type >= std::size(kScalarTypes)) fail("{}: metadata '{}' has the unknown type {}", file_, key, type);
    return kScalarTypes[type];
  }

  void read_entry() {
    const uint64_t begin = at_;
    const std::string key = text("a metadata key");
    const auto type = number<uint32_t>(fmt::format("the type of metadata '{}'", key));
    const std::string what = fmt::format("metadata '{}'", key);
    std::string value;
    if (type == kArray) value = read_list(key);
    else if (type == kString) value = text(what);
    else value = read_scalar(key, type);
    if (key == kAlignment) set_alignment(type, value);
    header_.entries[key] = {begin, at_ - begin};
    if (!header_.metadata.emplace(key, value).second) fail("{}: metadata '{}' appears twice", file_, key);
  }

  std::string read_scalar(const std::string& key, uint32_t type) {
    const std::string_view bytes = take(value_type(key, type).bytes, fmt::format("metadata '{}'", key));
    if (type == kFloat32) return fmt::format("{}", as<float>(bytes));
    if (type == kFloat64) return fmt::format("{}", as<double>(bytes));
    if (type == kBool) return bytes[0] == 0 ? "false" : "true";
    // An integer: its bytes, the sign repeated above them where it has one.
    const bool is_signed = kScalarTypes[type].name[0] == 'i';
    int64_t value = is_signed && bytes.back() < 0 ? -1 : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    return is_signed ? fmt::format("{}", value) : fmt::format("{}", static_cast<uint64_t>(value));
  }

  template <typename T>
  static T as(std::string_view bytes) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }

  std::string read_list(const std::string& key) {
    const std::string what = fmt::format("metadata '{}'", key);
    const auto type = number<uint32_t>("the element type of " + what);
    const ScalarType& element = value_type(key, type);
    if (type == kArray) fail("{}: {} is a list of lists, which no model file has", file_, what);
    const auto count = number<uint64_t>("the length of " + what);
    require_left(count, type == kString ? sizeof(uint64_t) : element.bytes, ("elements of " + what).c_str());
    const uint64_t begin = at_;
    if (type == kString) {
      for (uint64_t i = 0; i < count; ++i) text("an element of " + what);
    } else {
      const std::string_view bytes = take(count * element.bytes, what);
      if (type == kInt32 && key.starts_with(kOriginalShape)) add_original_shape(key, bytes);
    }
    header_.lists[key] = {element.name, count, begin, at_ - begin};
    return fmt::format("[{} of {}]", count, element.name);
  }

  void add_original_shape(const std::string& key, std::string_view bytes) {
    std::vector<int64_t>& shape = original_shapes_[key.substr(std::string_view(kOriginalShape).size())];
    for (size_t i = 0; i < bytes.size(); i += sizeof(int32_t)) shape.push_back(as<int32_t>(bytes.substr(i)));
  }

  void set_alignment(uint32_t type, const std::string& value) {
    if (type != kUint32) fail("{}: {} must be of type u32, but is of another", file_, kAlignment);
    alignment_ = std::stoull(value);
    if (!std::has_single_bit(alignment_)) fail("{}: alignment {} is not a power of two", file_, value);
  }

  void read_tensor() {
    const std::string name = text("a tensor's name");
    if (name.empty()) fail("{}: tensor {} has no name", file_, header_.tensors.size());
    if (name.size() > kLongestName) {
      fail("{}: a tensor's name has {} bytes; at most {} are allowed", file_, name.size(), kLongestName);
    }
    const auto axes = number<uint32_t>(fmt::format("the number of dimensions of tensor '{}'", name));
    if (axes > kMostAxes)
      fail("{}: tensor '{}' has {} dimensions; at most {} are supported", file_, name, axes, kMostAxes);
    std::vector<uint64_t> extents(axes);
    for (uint64_t& extent : extents) extent = number<uint64_t>(fmt::format("a dimension of tensor '{}'", name));
    const auto id = number<uint32_t>(fmt::format("the type of tensor '{}'", name));
    const auto offset = number<uint64_t>(fmt::format("the offset of tensor '{}'", name));
    const StoredType& type = stored_type(name, id);
    TensorInfo info;
    info.dtype_name = type.name;
    info.dtype = type.dtype;
    info.bytes = byte_count(name, extents, type);
    info.offset = offset;
    info.set_extents({extents.rbegin(), extents.rend()});
    use_original_shape(name, info);
    if (!header_.tensors.emplace(name, std::move(info)).second) fail("{}: tensor '{}' appears twice", file_, name);
  }

  // The block of a type: one element, where it has a DType; of no bytes, where it is known by name only.
  struct Unit {
    uint64_t elements, bytes;
  };
  static Unit unit(const StoredType& type) {
    if (type.dtype) return {1, dtype_size(*type.dtype)};
    const BlockFormat* format = find_block_format(type.name);
    return format == nullptr ? Unit{1, 0} : Unit{format->elements, format->bytes};
  }

  const StoredType& stored_type(const std::string& name, uint32_t id) const {
    const auto* type = std::find_if(std::begin(kStoredTypes), std::end(kStoredTypes),
                                    [&](const StoredType& known) { return known.id == id; });
    if (type == std::end(kStoredTypes)) fail("{}: tensor '{}' has the unknown type {}", file_, name, id);
    if (unit(*type).bytes > 0) return *type;
    std::string readable;
    for (const StoredType& known : kStoredTypes) {
      if (unit(known).bytes > 0) readable += fmt::format("{}{}", readable.empty() ? "" : ", ", known.name);
    }
    fail("{}: tensor '{}' has type {}, which cannot be read; readable are {}", file_, name, type->name, readable);
  }

  uint64_t byte_count(const std::string& name, const std::vector<uint64_t>& extents, const StoredType& type) const {
    uint64_t elements = 1, bytes = 0;
    for (const uint64_t extent : extents) {
      if (extent == 0) fail("{}: tensor '{}' has size 0", file_, name);
      if (__builtin_mul_overflow(elements, extent, &elements) || elements > static_cast<uint64_t>(INT64_MAX)) {
        fail("{}: size of tensor '{}' overflows", file_, name);
      }
    }
    const Unit block = unit(type);
    const uint64_t row = extents.empty() ? 1 : extents.front();
    if (row % block.elements != 0) {
      fail("{}: rows of tensor '{}' ({}) are not a multiple of the block size of {} ({})", file_, name, row, type.name,
           block.elements);
    }
    if (__builtin_mul_overflow(elements / block.elements, block.bytes, &bytes)) {
      fail("{}: size of tensor '{}' overflows", file_, name);
    }
    if (bytes > contents_.size()) {
      fail("{}: tensor '{}' takes {} bytes and is larger than the file of {}; download it again", file_, name, bytes,
           contents_.size());
    }
    return bytes;
  }

  void use_original_shape(const std::string& name, TensorInfo& info) const {
    const auto found = original_shapes_.find(name);
    if (found == original_shapes_.end()) return;
    // Few elements, because the stored ones lie in the file; extents that are not natural are no factors of them.
    const auto product = [](const std::vector<int64_t>& extents) {
      int64_t left = 1;
      for (const int64_t extent : extents) {
        if (extent <= 0 || __builtin_mul_overflow(left, extent, &left)) return int64_t{0};
      }
      return left;
    };
    if (found->second.size() > kMostAxes || product(found->second) != product(info.extents)) {
      fail("{}: tensor '{}' has shape [{}], which '{}{}' cannot make [{}]", file_, name, fmt::join(info.extents, ", "),
           kOriginalShape, name, fmt::join(found->second, ", "));
    }
    info.set_extents(found->second);
  }

  // Turns offsets within the data into offsets within the file.
  void place_tensors() {
    const uint64_t padding = (alignment_ - at_ % alignment_) % alignment_;
    const uint64_t start = at_ + std::min(padding, left()), room = contents_.size() - start;
    header_.bytes = start;
    for (auto& [name, info] : header_.tensors) {
      if (info.offset % alignment_ != 0) {
        fail("{}: tensor '{}' starts at the unaligned offset {}; it must be a multiple of {}", file_, name, info.offset,
             alignment_);
      }
      if (info.offset > room || info.bytes > room - info.offset) {
        fail("{}: ends after {} bytes, but tensor '{}' needs {} at offset {} of the data; download it again", file_,
             contents_.size(), name, info.bytes, info.offset);
      }
      info.offset += start;
      info.aligned = !info.dtype || info.offset % dtype_size(*info.dtype) == 0;
    }
    header_.check_overlaps(file_);
  }

  std::string_view contents_;
  const std::string& file_;
  uint64_t at_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::map<std::string, std::vector<int64_t>> original_shapes_;  // by tensor
  TensorHeader header_;
};

}  // namespace

uint32_t gguf_type(std::string_view name) {
  const auto* type = std::find_if(std::begin(kStoredTypes), std::end(kStoredTypes),
                                  [&](const StoredType& known) { return name == known.name; });
  ZT_CHECK(type != std::end(kStoredTypes), "{}", name);
  return type->id;
}

TensorHeader read_gguf_header(std::string_view contents, const std::string& file) {
  return Reader(contents, file).read();
}

}  // namespace zoetrope::io
