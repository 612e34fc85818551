// For this room's tests: files in a folder of their own, well-formed or not.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "base/test_folder.h"

namespace zoetrope::io {

// A safetensors file with any header text and any data.
inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

}  // namespace zoetrope::io
