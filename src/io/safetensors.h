// The safetensors container: maps files to read them, writes by way of a temporary name. Knows no models; folders of
// several files are in checkpoint.h, conversion of dtypes in weights.h.
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
  std::optional<DType> dtype;    // empty for types that can only be listed (F8_E4M3, I16, …)
  Shape shape;                   // with more than five axes: [elements]
  std::vector<int64_t> extents;  // every axis
  uint64_t offset = 0;           // of the first byte, counted from the start of the file
  uint64_t bytes = 0;
  bool aligned = true;  // the mapped data may be read through a pointer of its type
};

// A mapped file, fully validated by open(): tensor() cannot fail on a bad file later. The file must not be truncated by
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
  // elements must be read with memcpy. A dtype without a DType, or more than five axes, is an Error.
  TensorView tensor(const std::string& name) const;
  TensorView flat(const std::string& name) const;  // likewise, as [elements] whatever its axes
  void will_need(const std::string& name) const;   // prefetches the pages
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
  enum class Sample : uint8_t { kBlocks, kAll };
  uint64_t hash(Sample sample) const;  // of the header, and of 4 KiB from the middle of each tensor or of all bytes

 private:
  explicit SafetensorsFile(std::filesystem::path path);
  void map();
  void parse_header();

  std::filesystem::path path_;
  InputFile file_;
  std::byte* data_ = nullptr;
  uint64_t header_bytes_ = 0;  // including the length before it
  std::map<std::string, TensorInfo> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes a file whose tensors are described first and then written piece by piece, so that they are never in memory
// together. All or nothing (AtomicFile).
class SafetensorsStream {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
  };
  // Tensors are stored by descending element size, so that every one is aligned, else as they are given.
  SafetensorsStream(const std::filesystem::path& path, std::vector<Entry> entries,
                    const std::map<std::string, std::string>& metadata);
  const std::vector<Entry>& entries() const { return entries_; }  // as they are stored, and as write() expects them
  void write(const void* data, size_t bytes);                     // continues where the last call ended
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
  // The same without the final rename, which commit() of the result does.
  SafetensorsStream prepare(const std::filesystem::path& path) const;

 private:
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace zoetrope::io
