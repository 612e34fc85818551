// Long work ends between two of its pieces when the caller gives it up.
#pragma once

#include <functional>
#include <string_view>

#include "base/error.h"

namespace zoetrope {

// Throws Error where `cancelled` is set and says so. `when`: "while decoding", or empty.
inline void stop_if_cancelled(const std::function<bool()>& cancelled, std::string_view when = {}) {
  if (cancelled && cancelled()) fail("interrupted{}{}; nothing was written", when.empty() ? "" : " ", when);
}

}  // namespace zoetrope
