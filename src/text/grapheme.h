// Where user-perceived characters (extended grapheme clusters, UAX #29) begin. Not for words or lines.
#pragma once

#include <cstddef>
#include <string_view>

namespace zoetrope::text {

// The end of the cluster that starts at text[begin].
size_t grapheme_end(std::u32string_view text, size_t begin);

}  // namespace zoetrope::text
