// A checksum of large data at about memory speed. Against accidents (truncated, mixed up, damaged files), not against
// malice; base/hash.h is for names.
#pragma once

#include <cstddef>
#include <cstdint>

namespace zoetrope::io {

uint64_t checksum(const std::byte* data, size_t bytes);

}  // namespace zoetrope::io
