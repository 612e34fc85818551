// Changes of safetensors files: the header is changed as JSON, its length is set again, and the data is often brought
// to the length that the header describes.
#pragma once

#include <string>

#include "fuzz.h"

namespace zoetrope::fuzz {

std::string changed_safetensors(const std::string& bytes, Dice& dice);

// What an Error says of a file whose header cannot be read.
inline const std::vector<std::string_view> kSafetensorsHeaderErrors = {"but a safetensors file starts with",
                                                                       "claims a header of", "not valid JSON"};

}  // namespace zoetrope::fuzz
