// A pattern to look for in UTF-8 text: a literal or a regular expression (ICU's dialect; the reference's is Oniguruma,
// the same for everything that tokenizer files are known to use). Not for replacing or splitting itself.
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope::text {

struct Match {
  size_t begin = 0, end = 0;  // bytes
};

// All non-overlapping matches, left to right.
using Pattern = std::function<std::vector<Match>(std::string_view)>;

// From {"String": …} or {"Regex": …}; throws Error that opens with `where`.
Pattern make_pattern(const nlohmann::json& block, const std::string& where);

}  // namespace zoetrope::text
