// What a request is answered with when it is refused: a status code of HTTP, and the error object of OpenAI's API.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

#include "zoetrope/error.h"

namespace zoetrope::server {

class ApiError : public Error {
 public:
  // `code` is for programs ("queue_full"), `param` the field that is wrong; empty: none.
  ApiError(int status, std::string code, const std::string& message, std::string param = "")
      : Error(message), status_(status), code_(std::move(code)), param_(std::move(param)) {}

  int status() const { return status_; }
  const std::string& code() const { return code_; }
  const std::string& param() const { return param_; }
  std::map<std::string, std::string> fields;  // of the answer's head, "Retry-After" for one

  // {"error": {"message", "type", "param", "code"}}
  nlohmann::json body() const;

 private:
  int status_;
  std::string code_, param_;
};

}  // namespace zoetrope::server
