// The safetensors container: reading by mapping the file, writing by way of a temporary name. Knows nothing of models;
// folders with several files are checkpoint.h, conversion of dtypes is weights.h.
// Format: https://huggingface.co/docs/safetensors (8 bytes header length, JSON header, data without gaps).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/atomic_file.h"
#include "base/input_file.h"

namespace zoetrope::io {

struct TensorInfo {
  std::string dtype_name;        // as the file spells it
  std::optional<DType> dtype;    // nothing for what cannot be computed with (F8_E4M3, I16, …), which is listed only
  Shape shape;                   // of more than five axes: all in one, [elements]
  std::vector<int64_t> extents;  // every axis
  uint64_t offset = 0;           // of the first byte, counted from the start of the file
  uint64_t bytes = 0;
  bool aligned = true;  // the mapped data may be read through a pointer of its type
};

// A mapped file, validated whole at open(): tensor() cannot fail on a bad file later. The file must not be truncated by
// others while it is open (as with any mapping, the process would receive SIGBUS).
class SafetensorsFile {
 public:
  static std::shared_ptr<const SafetensorsFile> open(const std::filesystem::path& path);
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;
  ~SafetensorsFile();

  const std::filesystem::path& path() const { return path_; }
  const std::map<std::string, TensorInfo>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  const TensorInfo& info(const std::string& name) const;  // absent: Error naming file and tensor
  // A read-only view of the map, valid as long as the file object; writing to it is a fault. Where !info().aligned the
  // elements may only be reached by memcpy. A dtype that cannot be computed with, or more than five axes, is an Error.
  TensorView tensor(const std::string& name) const;
  TensorView flat(const std::string& name) const;  // likewise, as [elements] whatever its axes
  void will_need(const std::string& name) const;   // asks the system to read the pages ahead
  // Lets go of the pages that hold this tensor and of those around it: resident memory falls, views of all tensors stay
  // valid and are mapped again when they are touched.
  void release(const std::string& name) const;

  // An Error where another program has written to the file or put another one in its place since it was opened, or
  // where its inode was touched in another way (a link, a permission): that cannot be told from a change whose time was
  // set back.
  void require_unchanged() const;
  // Tells this file from others and from itself before and after a change (docs/configuration.md): name, inode, size,
  // times, and hash(): of its blocks, or of everything where the times are coarse. Reads the file, so it takes
  // milliseconds, or the time to read it all; and 10 ms, or two seconds, where the file was changed less than that ago.
  std::string identity() const;
  enum class Sample : uint8_t { kBlocks, kAll };
  uint64_t hash(Sample sample) const;  // of the header, and of 4 KiB from the midst of each tensor or of all bytes

 private:
  explicit SafetensorsFile(std::filesystem::path path);
  void map();
  void parse_header();

  std::filesystem::path path_;
  InputFile file_;
  std::byte* data_ = nullptr;
  uint64_t header_bytes_ = 0;  // with the length before it
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes a file whose tensors are described first and come after, piece by piece, so that they never are in memory
// together. All or nothing (AtomicFile).
class SafetensorsStream {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
  };
  // Tensors are stored by falling element size, so that every one is aligned, else as they are given.
  SafetensorsStream(const std::filesystem::path& path, std::vector<Entry> entries,
                    const std::map<std::string, std::string>& metadata);
  const std::vector<Entry>& entries() const { return entries_; }  // as they are stored, and as write() expects them
  void write(const void* data, size_t bytes);                     // goes on where the last call ended
  void close();   // flushes to the disk; everything must have been written
  void commit();  // under its final name. Implies close()

 private:
  AtomicFile file_;
  std::vector<Entry> entries_;
  uint64_t missing_ = 0;  // bytes of data
};

// Collects views and writes them in one go. The data must stay alive until write() returns.
class SafetensorsWriter {
 public:
  void add(const std::string& name, const TensorView& tensor);  // CPU, any strides; a name twice is an Error
  void set_metadata(const std::string& key, const std::string& value);
  // All or nothing (AtomicFile). Tensors are stored by falling element size, so that every one is aligned.
  void write(const std::filesystem::path& path) const;
  // The same up to the final name: commit() of what is returned only renames.
  SafetensorsStream prepare(const std::filesystem::path& path) const;

 private:
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace zoetrope::io
