// Reads the JSON files of a tokenizer folder. Not a general reader: see how it reads numbers.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace zoetrope::text {

// Throws Error if the file cannot be read or is not JSON. Numbers with a fraction are read by reference_double().
nlohmann::json read_json_file(const std::filesystem::path& file);

// A JSON number as the reference's reader (serde_json with its default features) takes it: the digits as an integer,
// rounded to double, then one multiplication or division by a power of ten. That is off by one unit in the last place
// for one number in eight, which decides between two cuttings of equal score.
double reference_double(std::string_view token);

}  // namespace zoetrope::text
