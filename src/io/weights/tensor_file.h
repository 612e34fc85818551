// A file of named tensors, mapped to be read. Every container of weights is one function that reads its header
// (safetensors.h, gguf.h); the rest is here. Folders of several files are in checkpoint.h, conversion of dtypes in
// weights.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/file_map.h"
#include "base/input_file.h"

namespace zoetrope::io {

struct TensorInfo {
  std::string dtype_name;        // as the file spells it
  std::optional<DType> dtype;    // empty for types that can only be listed (F8_E4M3, I16, Q4_K, …)
  Shape shape;                   // with more than five axes: [elements]
  std::vector<int64_t> extents;  // every axis
  uint64_t offset = 0;           // of the first byte, counted from the start of the file
  uint64_t bytes = 0;
  bool aligned = true;  // the mapped data may be read through a pointer of its type

  void set_extents(std::vector<int64_t> all);  // and the shape; their product must not overflow
};

// A list among the metadata of a GGUF file: numbers one after the other, or strings, each behind its length (u64).
struct MetadataList {
  std::string type;  // "f32", "string"
  uint64_t count = 0;
  uint64_t offset = 0, bytes = 0;  // in the file
};

struct FileRange {
  uint64_t offset = 0, bytes = 0;
};

// What the header of a container says. Its reader has checked that every tensor lies in the file and none overlap.
struct TensorHeader {
  std::string container;  // "safetensors", "GGUF 3"
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::map<std::string, FileRange> entries;   // of GGUF: those of the metadata, as they are stored
  std::map<std::string, MetadataList> lists;  // of the metadata, which have their lengths and types alone
  uint64_t bytes = 0;                         // of the file before the data

  // For readers: an Error that names `file` where two tensors share bytes.
  void check_overlaps(const std::string& file) const;
};

// Files with one of these endings hold weights.
std::vector<std::string_view> weight_file_endings();  // ".safetensors", …
bool has_weight_file_ending(const std::filesystem::path& path);

// Bytes of a mapped file that the system may map around one that is touched, where they lie together in its cache.
inline constexpr size_t kMappedAround = size_t{2} << 20;

// Fully validated by open(): tensor() cannot fail on a bad file later. The file must not be truncated by others while
// it is open (as with any mapping, the process would receive SIGBUS: base/file_map.h).
class TensorFile {
 public:
  // Error "PATH: …" for a file that is damaged or of no known container.
  static std::shared_ptr<const TensorFile> open(const std::filesystem::path& path);
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::string& container() const { return header_.container; }
  const std::map<std::string, TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  const MetadataList* list(const std::string& key) const;  // null where there is none
  std::string_view bytes(const MetadataList& list) const;
  std::string_view metadata_entry(const std::string& key) const;  // of GGUF, with key and type; it must be there

  bool contains(const std::string& name) const { return tensors().count(name) != 0; }
  const TensorInfo& info(const std::string& name) const;  // absent: Error naming file and tensor
  // A read-only view of the map, valid as long as the file object; writing to it is a fault. Where !info().aligned the
  // elements must be read with memcpy. A dtype without a DType, or more than five axes, is an Error.
  TensorView tensor(const std::string& name) const;
  TensorView flat(const std::string& name) const;         // likewise, as [elements] whatever its axes
  const std::byte* bytes(const std::string& name) const;  // its info().bytes as they are stored, of any type
  void will_need(const std::string& name) const;          // prefetches the pages
  // Releases the pages of this tensor and those around it: resident memory falls; views of all tensors stay valid and
  // are read again when they are touched.
  void release(const std::string& name) const;

  // An Error if another program has written to the file or replaced it since it was opened. Also if its inode was
  // touched in another way (a link, a permission), because that cannot be distinguished from a change of the contents
  // whose time was set back.
  void require_unchanged() const;
  // Identifies this version of the file (docs/configuration.md): name, inode, size, times, and hash(): of its blocks,
  // or of everything where the times are coarse. Reads the file, so it takes milliseconds, or the time to read it all;
  // and 10 ms, or two seconds, where the file was changed less than that ago.
  std::string identity() const;
  // Of the header, and of 4 KiB from the middle of each tensor, or all bytes.
  enum class Sample : uint8_t { kBlocks, kAll };
  uint64_t hash(Sample sample) const;

 private:
  explicit TensorFile(std::filesystem::path path);

  std::filesystem::path path_;
  InputFile file_;
  FileMap map_;  // of nothing where the file is empty
  TensorHeader header_;
};

}  // namespace zoetrope::io
