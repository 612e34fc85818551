#include "io/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"

namespace zoetrope::io {

using nlohmann::json;

namespace {

// "[json.exception.parse_error.101] parse error at line 3, column 7: …" without the library's own numbering.
std::string reason(const json::exception& error) {
  std::string text = error.what();
  if (const size_t end = text.find("] "); end != text.npos) text.erase(0, end + 2);
  // What the parser took for one word may be thousands of characters in a file that is not JSON.
  constexpr std::string_view kLastRead = "last read: '";
  constexpr size_t kMostShown = 40;
  if (const size_t at = text.find(kLastRead); at != text.npos) {
    const size_t begin = at + kLastRead.size(), end = text.rfind('\'');
    if (end > begin + kMostShown) text.replace(begin, end - begin - kMostShown, "…");
  }
  return text;
}

// A callback of the parser that refuses deep nesting and duplicate keys before values are built.
class Guard {
 public:
  explicit Guard(const std::string& where) : where_(where) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth) fail("{}: JSON nests deeper than {} levels", where_, kMaxJsonDepth);
        if (event == json::parse_event_t::object_start) keys_.emplace_back();
        break;
      case json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!keys_.back().insert(key).second) fail("{}: key '{}' appears twice in one JSON object", where_, key);
        break;
      }
      default:
        break;
    }
    return true;
  }

 private:
  const std::string& where_;
  std::vector<std::set<std::string>> keys_;  // of every object that is open
};

template <typename T>
constexpr const char* wanted_type() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, int64_t>) return "an integer of 64 bits";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "a string";
  if constexpr (std::is_same_v<T, std::vector<int64_t>>) return "a list of integers";
  if constexpr (std::is_same_v<T, std::vector<double>>) return "a list of numbers";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "a list of strings";
  if constexpr (std::is_same_v<T, std::vector<std::optional<std::string>>>) return "a list of strings or nulls";
  return "another type";
}

bool convert(const json& value, bool& out) {
  if (!value.is_boolean()) return false;
  out = value.get<bool>();
  return true;
}

bool convert(const json& value, int64_t& out) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()}) return false;
  out = value.get<int64_t>();
  return true;
}

bool convert(const json& value, double& out) {
  if (!value.is_number()) return false;
  out = value.get<double>();
  return std::isfinite(out);
}

bool convert(const json& value, std::string& out) {
  if (!value.is_string()) return false;
  out = value.get_ref<const std::string&>();
  return true;
}

bool convert(const json& value, std::optional<std::string>& out) {
  if (value.is_null()) return true;
  return convert(value, out.emplace());
}

template <typename T>
bool convert(const json& value, std::vector<T>& out) {
  if (!value.is_array()) return false;
  for (const json& element : value) {
    if (!convert(element, out.emplace_back())) return false;
  }
  return true;
}

// A value as errors show it: short ones complete, others by their type.
std::string shown(const json& value) {
  if (value.is_structured() && value.size() > 8) return fmt::format("an {} of {}", value.type_name(), value.size());
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 80 ? text : fmt::format("{} of {} characters", value.type_name(), text.size());
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  try {
    return json::parse(text.begin(), text.end(), Guard(where));
  } catch (const json::exception& error) {
    fail("{}: not valid JSON: {}", where, reason(error));
  }
}

json load_json(const std::filesystem::path& path) { return parse_json(read_file(path), path.string()); }

std::string json_with(const std::filesystem::path& path, const std::map<std::string, std::string>& values) {
  json document = JsonObject::load(path).raw();
  for (const auto& [key, text] : values) document[key] = parse_json(text, path.string());
  constexpr int kIndent = 2;
  return document.dump(kIndent) + "\n";
}

JsonObject::JsonObject(std::shared_ptr<const json> node, std::string where, std::string prefix)
    : node_(std::move(node)), where_(std::move(where)), prefix_(std::move(prefix)) {}

JsonObject JsonObject::parse(std::string_view text, const std::string& where) {
  auto document = std::make_shared<json>(parse_json(text, where));
  if (!document->is_object()) fail("{}: holds {}, but a JSON object {{…}} is needed", where, shown(*document));
  return {std::move(document), where, ""};
}

JsonObject JsonObject::load(const std::filesystem::path& path) { return parse(read_file(path), path.string()); }

const json* JsonObject::value(const std::string& key) const {
  const auto found = node_->find(key);
  return found == node_->end() || found->is_null() ? nullptr : &*found;
}

std::string JsonObject::label(const std::string& key) const {
  return fmt::format("{}: key '{}{}'", where_, prefix_, key);
}

bool JsonObject::has(const std::string& key) const { return value(key) != nullptr; }

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : node_->items()) keys.push_back(item.key());
  return keys;
}

template <typename T>
std::optional<T> JsonObject::find(const std::string& key) const {
  const json* found = value(key);
  if (found == nullptr) return std::nullopt;
  T converted{};
  if (!convert(*found, converted)) fail("{} is {}, but must be {}", label(key), shown(*found), wanted_type<T>());
  return converted;
}

template <typename T>
T JsonObject::get(const std::string& key) const {
  std::optional<T> found = find<T>(key);
  if (!found) fail("{} is missing; it must be {}", label(key), wanted_type<T>());
  return *std::move(found);
}

template <typename T>
T JsonObject::get(const std::string& key, const T& fallback) const {
  return find<T>(key).value_or(fallback);
}

template <typename T>
void JsonObject::check_range(const std::string& key, T value, T low, T high) const {
  if (!(low <= value && value <= high)) fail("{} is {}, but must be from {} to {}", label(key), value, low, high);
}

template <typename T>
T JsonObject::get_between(const std::string& key, T low, T high) const {
  const T value = get<T>(key);
  check_range(key, value, low, high);
  return value;
}

template <typename T>
T JsonObject::get_between(const std::string& key, T low, T high, T fallback) const {
  return has(key) ? get_between<T>(key, low, high) : fallback;
}

std::string JsonObject::check_one_of(const std::string& key, std::string value,
                                     std::initializer_list<std::string_view> legal) const {
  if (std::find(legal.begin(), legal.end(), value) != legal.end()) return value;
  fail("{}: {} '{}' is not supported; supported: {}", where_, key, value, fmt::join(legal, ", "));
}

std::string JsonObject::get_one_of(const std::string& key, std::initializer_list<std::string_view> legal) const {
  return check_one_of(key, get<std::string>(key), legal);
}

std::string JsonObject::find_one_of(const std::string& key, std::initializer_list<std::string_view> legal) const {
  return check_one_of(key, get<std::string>(key, std::string(*legal.begin())), legal);
}

void JsonObject::require_switch(const std::string& key, bool supported) const {
  if (get<bool>(key, supported) != supported) fail("{}: {} must be {}", where_, key, supported);
}

JsonObject JsonObject::object(const std::string& key) const {
  const json* found = value(key);
  if (found == nullptr) fail("{} is missing; it must be an object", label(key));
  if (!found->is_object()) fail("{} is {}, but must be an object", label(key), shown(*found));
  return {std::shared_ptr<const json>(node_, found), where_, prefix_ + key + "."};
}

std::vector<JsonObject> JsonObject::objects(const std::string& key) const {
  const json* found = value(key);
  if (found == nullptr) fail("{} is missing; it must be a list of objects", label(key));
  if (!found->is_array()) fail("{} is {}, but must be a list of objects", label(key), shown(*found));
  std::vector<JsonObject> objects;
  for (size_t i = 0; i < found->size(); ++i) {
    const json& element = (*found)[i];
    if (!element.is_object()) fail("{}: element {} is {}, but must be an object", label(key), i, shown(element));
    objects.push_back(
        JsonObject(std::shared_ptr<const json>(node_, &element), where_, fmt::format("{}{}[{}].", prefix_, key, i)));
  }
  return objects;
}

#define ZT_JSON_GETTERS(T)                                                     \
  template std::optional<T> JsonObject::find<T>(const std::string& key) const; \
  template T JsonObject::get<T>(const std::string& key) const;                 \
  template T JsonObject::get<T>(const std::string& key, const T& fallback) const;
ZT_JSON_GETTERS(bool)
ZT_JSON_GETTERS(int64_t)
ZT_JSON_GETTERS(double)
ZT_JSON_GETTERS(std::string)
ZT_JSON_GETTERS(std::vector<int64_t>)
ZT_JSON_GETTERS(std::vector<double>)
ZT_JSON_GETTERS(std::vector<std::string>)
ZT_JSON_GETTERS(std::vector<std::optional<std::string>>)
#undef ZT_JSON_GETTERS

#define ZT_JSON_RANGES(T)                                                             \
  template T JsonObject::get_between<T>(const std::string& key, T low, T high) const; \
  template T JsonObject::get_between<T>(const std::string& key, T low, T high, T fallback) const;
ZT_JSON_RANGES(int64_t)
ZT_JSON_RANGES(double)
#undef ZT_JSON_RANGES

}  // namespace zoetrope::io
