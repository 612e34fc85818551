// A checksum of large data at about the speed of memory. Against accidents (cut, mixed up, damaged files), not against
// malice; hash.h is for names.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoetrope::io {

uint64_t checksum(const std::byte* data, size_t bytes);

}  // namespace zoetrope::io
