// A handler of nlohmann's parsing events that builds the document, because its own builder drops the digits of numbers.
#include "text/json_file.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/input_file.h"
#include "text/tokenizer_model.h"

namespace zoetrope::text {

namespace {

using nlohmann::json;

// Far beyond what tokenizer files have; documents are copied and destroyed recursively.
constexpr size_t kMaxNesting = 100;

class DocumentBuilder final : public nlohmann::json_sax<json> {
 public:
  json document;
  size_t error_position = 0;
  bool too_deep = false;

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t, const string_t& token) override { return add(reference_double(token)); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none
  bool start_object(std::size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    error_position = position;
    return false;
  }

 private:
  bool add(json value) {
    put(std::move(value));
    return true;
  }

  json& put(json value) {
    if (open_.empty()) return document = std::move(value);
    json& parent = *open_.back();
    if (parent.is_object()) return parent[key_] = std::move(value);
    parent.push_back(std::move(value));
    return parent.back();
  }

  // An open container stays where it is: nothing is added to its parent before it is closed.
  bool open(json value) {
    too_deep = open_.size() >= kMaxNesting;
    if (too_deep) return false;
    open_.push_back(&put(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::vector<json*> open_;
  std::string key_;
};

constexpr int kMaxPower = std::numeric_limits<double>::max_exponent10;

const std::array<double, kMaxPower + 1>& powers_of_ten() {
  static const auto powers = [] {
    std::array<double, kMaxPower + 1> table{};
    for (int i = 0; i <= kMaxPower; ++i) {
      table[static_cast<size_t>(i)] = std::strtod(fmt::format("1e{}", i).c_str(), nullptr);
    }
    return table;
  }();
  return powers;
}

}  // namespace

double reference_double(std::string_view token) {
  const bool negative = token.starts_with('-');
  uint64_t digits = 0;
  int64_t exponent = 0;
  bool fraction = false, full = false;
  size_t i = negative ? 1 : 0;
  for (; i < token.size() && token[i] != 'e' && token[i] != 'E'; ++i) {
    if (token[i] == '.') {
      fraction = true;
      continue;
    }
    const auto digit = static_cast<uint64_t>(token[i] - '0');
    full = full || digits > (UINT64_MAX - digit) / 10;
    // Digits that no longer fit are dropped; before the point they still count for the size.
    if (full) {
      exponent += fraction ? 0 : 1;
    } else {
      digits = digits * 10 + digit;
      exponent -= fraction ? 1 : 0;
    }
  }
  if (i < token.size()) exponent += std::strtol(std::string(token.substr(i + 1)).c_str(), nullptr, 10);
  auto value = static_cast<double>(digits);
  for (; value != 0 && exponent < -kMaxPower; exponent += kMaxPower) value /= powers_of_ten()[kMaxPower];
  if (value != 0 && exponent > kMaxPower) value = std::numeric_limits<double>::infinity();
  if (value != 0 && exponent <= kMaxPower) {
    const double power = powers_of_ten()[static_cast<size_t>(exponent < 0 ? -exponent : exponent)];
    value = exponent < 0 ? value / power : value * power;
  }
  return negative ? -value : value;
}

json read_json_file(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  if (text.empty()) fail("{}: the file is empty", file.string());
  DocumentBuilder builder;
  if (!json::sax_parse(text, &builder)) {
    if (builder.too_deep) fail("{}: not a tokenizer's file: nested more than {} deep", file.string(), kMaxNesting);
    const bool ended = builder.error_position >= text.size();
    fail("{}: not valid JSON: {} at byte {} of {}", file.string(),
         ended ? "the file ends too early, it may be truncated" : "unexpected text", builder.error_position,
         text.size());
  }
  return std::move(builder.document);
}

}  // namespace zoetrope::text
