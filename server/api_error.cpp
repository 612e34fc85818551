#include "server/api_error.h"

#include <nlohmann/json.hpp>

#include "base/print.h"

namespace zoetrope::server {

nlohmann::json ApiError::body() const {
  const char* const type = status_ >= 500   ? "server_error"
                           : status_ == 429 ? "rate_limit_error"
                           : status_ == 401 ? "authentication_error"
                                            : "invalid_request_error";
  nlohmann::json error = {{"message", printable(what())}, {"type", type}, {"code", code_}};
  error["param"] = param_.empty() ? nlohmann::json() : nlohmann::json(param_);
  return {{"error", error}};
}

}  // namespace zoetrope::server
