// The safetensors container: the header, which tensor_file.h reads files by, and writing by way of a temporary name.
// Format: https://huggingface.co/docs/safetensors (8 bytes header length, JSON header, data).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/atomic_file.h"
#include "io/weights/tensor_file.h"

namespace zoetrope::io {

// The header of a safetensors file, all of whose bytes are `contents`. `file` is its name, for errors.
TensorHeader read_safetensors_header(std::string_view contents, const std::string& file);

// Writes a file whose tensors are described first and then written piece by piece, so that they are never in memory
// together. All or nothing (AtomicFile).
class SafetensorsStream {
 public:
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    const char* type = nullptr;  // of the format, where it has no DType: "F8_E4M3", "I8"; `dtype` has its size
    uint64_t bytes() const { return static_cast<uint64_t>(shape.size()) * dtype_size(dtype); }
  };
  enum class Order : uint8_t {
    kBySize,   // by descending element size, so that every tensor is aligned, else as they are given
    kAsGiven,  // for data that is not known before others are written
  };
  SafetensorsStream(const std::filesystem::path& path, std::vector<Entry> entries,
                    const std::map<std::string, std::string>& metadata, Order order = Order::kBySize);
  // Order::kBySize.
  static void sort_by_size(std::vector<Entry>& entries);
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
