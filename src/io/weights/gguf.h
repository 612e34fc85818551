// GGUF files: their header, and writing by way of a temporary name. The container of llama.cpp, in which quantised
// weights are published. tensor_file.h reads files by it. Format: docs/spec/weights.md, section 5.1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/atomic_file.h"
#include "io/weights/tensor_file.h"

namespace zoetrope::io {

inline constexpr std::string_view kGgufMagic = "GGUF";

// `contents` are all bytes of the file, `file` is its name, for errors. Versions 2 and 3. Shapes are in the order of
// the other containers, slowest axis first; tensors in blocks (Q8_0, Q4_K, …) have no DType. Of the metadata, lists are
// given as their length and type: "[5 of i32]".
TensorHeader read_gguf_header(std::string_view contents, const std::string& file);

// The number that stands for a type that can be read: F32, F16, BF16, or the name of a block format.
uint32_t gguf_type(std::string_view name);

// An entry of the metadata as files hold it.
std::string gguf_entry(std::string_view key, std::string_view text);
std::string gguf_entry(std::string_view key, uint32_t number);

// Writes a file of version 3 whose tensors are described first and then written one after the other. All or nothing
// (AtomicFile).
class GgufStream {
 public:
  struct Entry {
    std::string name, type;
    Shape shape;  // slowest axis first
  };
  // `metadata`: entries as gguf_entry() and TensorFile::metadata_entry() give them, without the alignment.
  GgufStream(const std::filesystem::path& path, const std::vector<Entry>& entries,
             const std::vector<std::string>& metadata);
  void write(const void* data, size_t bytes);  // continues where the last call ended
  void commit();                               // under its final name; everything must have been written

 private:
  void pad();

  AtomicFile file_;
  std::vector<uint64_t> missing_;  // bytes of the tensors
  size_t tensor_ = 0;
  uint64_t written_ = 0;
};

}  // namespace zoetrope::io
