#include "pipeline/settings/dtype_word.h"

#include <fmt/ranges.h>

#include <vector>

#include "base/error.h"
#include "base/options.h"

namespace zoetrope::pipeline {

const char* dtype_word(DType dtype) {
  for (const auto& [word, named] : kDTypeWords)
    if (named == dtype) return word;
  return dtype_name(dtype);
}

DType dtype_of(std::string_view word) {
  for (const auto& [known, dtype] : kDTypeWords)
    if (dtype_spelling(word) == known) return dtype;
  std::vector<const char*> words;
  for (const auto& [known, dtype] : kDTypeWords) words.push_back(known);
  fail("'{}' is none of {}", word, fmt::join(words, ", "));
}

}  // namespace zoetrope::pipeline
