// The one exception that Zoetrope throws at its boundaries.
#pragma once

#include <stdexcept>
#include <string>

#include "zoetrope/api.h"

namespace zoetrope {

// Something the caller or the user can mend: a file, a key, a shape, a peer that does not answer. what() is one
// sentence that says what is wrong, where (file, key, tensor, shape, rank), and what would be right.
class ZOETROPE_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

}  // namespace zoetrope
