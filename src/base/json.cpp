#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"

namespace zoetrope {

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

// Builds the document from the parser's events, which the parser's own builder would do without the text of numbers and
// without these refusals.
class DocumentBuilder final : public nlohmann::json_sax<json> {
 public:
  DocumentBuilder(size_t bytes, const std::string& where, ReadDouble read_double)
      : bytes_(bytes), where_(where), read_double_(read_double) {}

  json document;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    return add(read_double_ != nullptr ? read_double_(text) : value);
  }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    const auto [place, inserted] = open_.back()->get_ref<json::object_t&>().try_emplace(std::move(value));
    if (!inserted) fail("{}: key '{}' appears twice in one JSON object", where_, place->first);
    value_ = &place->second;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    fail("{}: not valid JSON: {}{}", where_, reason(error),
         position > bytes_ ? "; the text ends too early and may be truncated" : "");
  }

 private:
  bool add(json value) {
    put(std::move(value));
    return true;
  }

  json& put(json value) {
    if (open_.empty()) return document = std::move(value);
    json& parent = *open_.back();
    if (parent.is_object()) return *value_ = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }

  // An open container stays where it is: nothing is added to its parent before it is closed.
  bool open(json value) {
    if (open_.size() >= size_t{kMaxJsonDepth}) fail("{}: JSON nests deeper than {} levels", where_, kMaxJsonDepth);
    open_.push_back(&put(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  size_t bytes_;
  const std::string& where_;
  ReadDouble read_double_;
  std::vector<json*> open_;
  json* value_ = nullptr;  // of the key read last
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

json parse_json(std::string_view text, const std::string& where, ReadDouble read_double) {
  DocumentBuilder builder(text.size(), where, read_double);
  json::sax_parse(text, &builder);
  return std::move(builder.document);
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string exact_json_text(const json& value, int indent) {
  try {
    return value.dump(indent);
  } catch (const json::type_error&) {
    fail("a text or the name of a file is no UTF-8, and is to be noted in JSON, which holds nothing else; rename it");
  }
}

std::string json_with(const std::filesystem::path& path, const std::map<std::string, std::string>& values) {
  json document = JsonObject::load(path).raw();
  for (const auto& [key, text] : values) document[key] = parse_json(text, path.string());
  constexpr int kIndent = 2;
  return json_text(document, kIndent) + "\n";
}

JsonObject::JsonObject(std::shared_ptr<const json> node, std::string where, std::string prefix)
    : node_(std::move(node)), where_(std::move(where)), prefix_(std::move(prefix)) {}

JsonObject JsonObject::parse(std::string_view text, const std::string& where, ReadDouble read_double) {
  auto document = std::make_shared<json>(parse_json(text, where, read_double));
  if (!document->is_object()) fail("{}: holds {}, but a JSON object {{…}} is needed", where, shown(*document));
  return {std::move(document), where, ""};
}

JsonObject JsonObject::load(const std::filesystem::path& path, ReadDouble read_double) {
  return parse(read_file(path), path.string(), read_double);
}

const json* JsonObject::value(const std::string& key) const {
  const auto found = node_->find(key);
  return found == node_->end() || found->is_null() ? nullptr : &*found;
}

std::string JsonObject::label(const std::string& key) const {
  return fmt::format("{}: key '{}{}'", where_, prefix_, key);
}

std::string JsonObject::path() const {
  return prefix_.empty() ? where_ : fmt::format("{}: {}", where_, prefix_.substr(0, prefix_.size() - 1));
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

std::optional<JsonObject> JsonObject::find_object(const std::string& key) const {
  const json* found = value(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_object()) fail("{} is {}, but must be an object", label(key), shown(*found));
  return JsonObject(std::shared_ptr<const json>(node_, found), where_, prefix_ + key + ".");
}

JsonObject JsonObject::object(const std::string& key) const {
  std::optional<JsonObject> found = find_object(key);
  if (!found) fail("{} is missing; it must be an object", label(key));
  return *std::move(found);
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

}  // namespace zoetrope
