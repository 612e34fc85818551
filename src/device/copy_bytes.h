// Copies plain bytes at memory bandwidth. Tensors have strides and are counted: for them there is copy() in stream.h,
// which uses this.
#pragma once

#include <cstddef>

namespace zoetrope {

// From this size on the copy uses non-temporal stores. GB/s of two threads together, on a machine with 2 MB of L2 per
// core and 260 MB of L3 shared with other machines; memcpy below its own threshold for such stores (about 100 MB there,
// larger than any message):
//
//   MB per thread                        0.25   0.5    1      4      16     64     128
//   memcpy                               41     36     13     21     17     11     12
//   non-temporal                         20     27     19     33     32     18     19
//   and then the copying thread reads the copy once, as it does with a received block:
//   memcpy                               12.6   10.9   7.3    11.4   9.0    7.4    8.2
//   non-temporal                         7.3    9.9    6.6    13.6   12.2   9.6    10.1
//
// `rep movsb` had 16 GB/s at 1 to 16 MB and 13 above.
inline constexpr size_t kStreamedBytes = size_t{1} << 20;

// Like memcpy; the regions must not overlap. The data is visible to threads that synchronise with this one later.
void copy_bytes(void* to, const void* from, size_t bytes);

}  // namespace zoetrope
