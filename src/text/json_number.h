// How the tokenizers' reference reads a number of a JSON file.
#pragma once

#include <string_view>

namespace zoetrope::text {

// A JSON number as the reference's reader (serde_json with its default features) takes it: the digits as an integer,
// rounded to double, then one multiplication or division by a power of ten. That is off by one unit in the last place
// for one number in eight, which decides between two segmentations of equal score.
double reference_double(std::string_view token);

}  // namespace zoetrope::text
