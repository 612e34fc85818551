// Base64 as RFC 4648 writes it, for files inside JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace zoetrope::server {

// Nothing where `text` is not base64 with its padding.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace zoetrope::server
