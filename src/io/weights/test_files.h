// For the tests of this module: files in a folder of their own, well-formed or not.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/test_folder.h"
#include "io/weights/safetensors.h"

namespace zoetrope::io {

// A safetensors file with any header text and any data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

// As `cp -p` and archives replace a file that is there: other bytes, the same inode and time.
inline void rewrite_in_place(const std::filesystem::path& path, const std::string& bytes) {
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  std::fstream(path, std::ios::binary | std::ios::in | std::ios::out) << bytes;
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

// An entry of a safetensors header; `shape` and `span` as JSON.
inline std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& span) {
  return "\"" + name + R"(": {"dtype": ")" + dtype + R"(", "shape": )" + shape + R"(, "data_offsets": )" + span + "}";
}

// Its header from them.
inline std::string object(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& one : entries) text.append(text.empty() ? "{" : ",").append(one);
  return text + "}";
}

// Kilobytes of a file's map that are resident.
inline int64_t resident_kilobytes(const std::filesystem::path& path) {
  std::ifstream maps("/proc/self/smaps");
  int64_t sum = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find(path.string()) != std::string::npos) inside = true;
    if (inside && line.rfind("Rss:", 0) == 0) {
      sum += std::stoll(line.substr(4));
      inside = false;
    }
  }
  return sum;
}

// 1, 2, 3, … in float32.
inline Tensor counting(const Shape& shape) {
  Tensor tensor(DType::kF32, shape);
  std::iota(tensor.data<float>(), tensor.data<float>() + tensor.size(), 1.0f);
  return tensor;
}

}  // namespace zoetrope::io
