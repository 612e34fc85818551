// JSON files (configs, indices, headers, tokenizers) read with errors that name file, key, line and column. Reading
// only. For YAML see base/yaml.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope {

// Deeper nesting than any published file has (tokenizer.json: 6), and far from what could exhaust a stack.
inline constexpr int kMaxJsonDepth = 64;

// The double that a number with a fraction or an exponent stands for, given its text.
using ReadDouble = double (*)(std::string_view);

// The whole document. Broken syntax, a duplicate key, and nesting beyond kMaxJsonDepth are refused. `where` opens every
// error. Doubles are the nearest ones, or what `read_double` makes of their text. Include <nlohmann/json.hpp> to use
// the result; JsonObject below does not need it.
nlohmann::json parse_json(std::string_view text, const std::string& where, ReadDouble read_double = nullptr);

// As text, in one line or with so many blanks per level. Compiled once: the library's own dump() takes a second in each
// source that calls it. Bytes that are no UTF-8 are replaced, or, in what is read again to be acted on, an Error.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
std::string exact_json_text(const nlohmann::json& value, int indent = -1);

// The text of a JSON file with these keys of its top level set to other values, each given as JSON text.
std::string json_with(const std::filesystem::path& path, const std::map<std::string, std::string>& values);

// One object of a document: typed getters whose errors name the file and the key with its parents ("a.b").
//   const auto config = JsonObject::load(folder / "config.json");
//   const auto layers = config.get_between<int64_t>("num_layers", 1, 1000);
// T is bool, int64_t, double, std::string, or a std::vector of int64_t, double, std::string or
// std::optional<std::string> (whose nulls are empty). An int64_t must be written without a fraction; a double may be
// written as an integer. A key that holds null counts as absent, as the published configs mean it.
class JsonObject {
 public:
  static JsonObject load(const std::filesystem::path& path, ReadDouble read_double = nullptr);
  static JsonObject parse(std::string_view text, const std::string& where, ReadDouble read_double = nullptr);

  bool has(const std::string& key) const;  // present and not null
  std::vector<std::string> keys() const;   // sorted; null ones too
  const std::string& where() const { return where_; }
  std::string path() const;  // the file and the keys down to this object: "tokenizer.json: model"

  template <typename T>
  T get(const std::string& key) const;  // absent: Error
  template <typename T>
  T get(const std::string& key, const T& fallback) const;  // absent: fallback
  template <typename T>
  std::optional<T> find(const std::string& key) const;  // absent: nothing

  // Values outside [low, high] are refused; T is int64_t or double. The fallback is not checked.
  template <typename T>
  T get_between(const std::string& key, T low, T high) const;
  template <typename T>
  T get_between(const std::string& key, T low, T high, T fallback) const;

  // A string that is none of `legal` is refused.
  std::string get_one_of(const std::string& key, std::initializer_list<std::string_view> legal) const;  // absent: Error
  std::string find_one_of(const std::string& key,
                          std::initializer_list<std::string_view> legal) const;  // absent: the first of them
  // Refuses a switch with another value than the one supported, which an absent switch has.
  void require_switch(const std::string& key, bool supported) const;

  JsonObject object(const std::string& key) const;                      // {"key": {…}}; absent: Error
  std::optional<JsonObject> find_object(const std::string& key) const;  // absent: nothing
  std::vector<JsonObject> objects(const std::string& key) const;        // {"key": [{…}, {…}]}

  const nlohmann::json& raw() const { return *node_; }

 private:
  JsonObject(std::shared_ptr<const nlohmann::json> node, std::string where, std::string prefix);
  const nlohmann::json* value(const std::string& key) const;
  std::string label(const std::string& key) const;
  template <typename T>
  void check_range(const std::string& key, T value, T low, T high) const;
  std::string check_one_of(const std::string& key, std::string value,
                           std::initializer_list<std::string_view> legal) const;

  std::shared_ptr<const nlohmann::json> node_;  // shares ownership of the whole document
  std::string where_;                           // the file
  std::string prefix_;                          // parents of this object's keys, "a.b."
};

}  // namespace zoetrope
