// Plain bytes from one place to another at memory bandwidth. Not for tensors, which have strides and a counter: see
// copy() in stream.h.
#pragma once

#include <cstddef>

namespace zoetrope {

// From this size on the copy goes past the caches. GB/s of two threads at once, on a machine with 2 MB of L2 a core and
// 260 MB of L3 shared with other machines; memcpy below its own threshold for such stores (here about 100 MB, so that
// no message ever gets there):
//
//   MB a thread                          0.25   0.5    1      4      16     64     128
//   memcpy                               41     36     13     21     17     11     12
//   past the caches                      20     27     19     33     32     18     19
//   and then the copy is read once by its maker, which is what a received block is for:
//   memcpy                               12.6   10.9   7.3    11.4   9.0    7.4    8.2
//   past the caches                      7.3    9.9    6.6    13.6   12.2   9.6    10.1
//
// `rep movsb` had 16 GB/s at 1 to 16 MB and 13 above.
inline constexpr size_t kStreamedBytes = size_t{1} << 20;

// As memcpy; the regions do not overlap. What was written is visible to whoever synchronises with this thread later.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace zoetrope
