// Changes of inputs that are text: JSON documents and YAML.
#pragma once

#include <string>

#include "fuzz.h"

namespace zoetrope::fuzz {

// A JSON document with one value, key or entry changed; in one of eight calls any bytes of it. Text that is not JSON
// becomes `fallback`.
std::string changed_json(const std::string& text, const std::string& fallback, Dice& dice);

// YAML of short lines with one line changed, moved, repeated or taken away; in one of eight calls any bytes.
std::string changed_lines(const std::string& text, Dice& dice);

}  // namespace zoetrope::fuzz
