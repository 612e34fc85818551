// Reads the JSON files of a tokenizer folder, with errors a user understands. Not a general reader: see how it reads
// numbers.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace zoetrope::text {

// Throws Error if the file cannot be read or is not JSON. Numbers with a fraction are read by reference_double().
nlohmann::json read_json_file(const std::filesystem::path& file);

// A JSON number as the reference's reader (serde_json with its default features) takes it: the digits as an integer,
// rounded to double, then one multiplication or division by a power of ten. That is off by one unit in the last place
// for one number in eight, which decides between two segmentations of equal score.
double reference_double(std::string_view token);

template <typename T>
T json_as(const nlohmann::json& value, const std::string& where) {
  if constexpr (std::is_same_v<T, std::string>) {
    if (!value.is_string()) fail("{} is {}, and must be a string", where, value.type_name());
  } else if constexpr (std::is_same_v<T, bool>) {
    if (!value.is_boolean()) fail("{} is {}, and must be true or false", where, value.type_name());
  } else if constexpr (std::is_integral_v<T>) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > INT32_MAX) {
      fail("{} must be a whole number from 0 to {}", where, INT32_MAX);
    }
  } else {
    if (!value.is_number()) fail("{} is {}, and must be a number", where, value.type_name());
  }
  return value.get<T>();
}

inline const nlohmann::json& json_field(const nlohmann::json& object, const char* key, const std::string& where) {
  if (!object.is_object()) fail("{} is {}, and must be an object", where, object.type_name());
  const auto found = object.find(key);
  if (found == object.end()) fail("{}: '{}' is missing", where, key);
  return *found;
}

template <typename T>
T json_get(const nlohmann::json& object, const char* key, const std::string& where) {
  return json_as<T>(json_field(object, key, where), where + "." + key);
}

// The field, or `fallback` where it is absent or null.
template <typename T>
T json_get_or(const nlohmann::json& object, const char* key, T fallback, const std::string& where) {
  if (!object.is_object()) fail("{} is {}, and must be an object", where, object.type_name());
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? fallback : json_as<T>(*found, where + "." + key);
}

}  // namespace zoetrope::text
