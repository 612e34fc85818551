#include "text_changes.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/words.h"

namespace zoetrope::fuzz {
namespace {

using nlohmann::json;

constexpr size_t kAnyBytes = 8;  // one in so many changes keeps to no form
constexpr size_t kMostText = size_t{1} << 15;

json telling_value(Dice& dice) {
  static const std::vector<json> values = {nullptr,
                                           true,
                                           0,
                                           1,
                                           -1,
                                           3,
                                           64,
                                           1000,
                                           0.5,
                                           -1.5,
                                           1e-308,
                                           1e308,
                                           INT32_MAX,
                                           int64_t{INT32_MAX} + 1,
                                           int64_t{1} << 32,
                                           INT64_MAX,
                                           INT64_MIN,
                                           uint64_t{INT64_MAX} + 1,
                                           UINT64_MAX,
                                           "",
                                           "a",
                                           "\x1b[31m",
                                           std::string("a\0b", 3),
                                           "é€😀",
                                           "F32",
                                           "BF16",
                                           json::array(),
                                           json::object(),
                                           json::array({0, 0}),
                                           json::array({1, nullptr, "x"})};
  return dice.pick(values);
}

void collect(json& node, std::vector<json*>& nodes) {
  nodes.push_back(&node);
  if (!node.is_structured()) return;
  for (json& child : node) collect(child, nodes);
}

void change_number(json& node, Dice& dice) {
  if (node.is_number_float()) {
    node = node.get<double>() * (dice.one_in(2) ? -1 : 1e10);
    return;
  }
  const auto value = node.get<uint64_t>();
  const std::vector<uint64_t> near = {value + 1, value - 1, value * 2, value / 2, uint64_t{0} - value, value ^ 0x80};
  if (node.is_number_unsigned()) node = dice.pick(near);
  else node = static_cast<int64_t>(dice.pick(near));
}

void change_members(json& node, const json& other, Dice& dice) {
  const size_t place = dice.below(node.size());
  auto member = node.begin();
  if (!node.empty()) std::advance(member, place);
  switch (dice.below(4)) {
    case 0:
      if (!node.empty()) node.erase(member);
      break;
    case 1:
      if (node.is_array()) node.push_back(other);
      else node[dice.one_in(2) ? "x" : "num_layers"] = other;
      break;
    case 2:
      if (node.is_object() && !node.empty()) {
        json value = std::move(*member);
        const std::string key = dice.changed(member.key());
        node.erase(member);
        node[key] = std::move(value);
      }
      break;
    default:
      if (node.is_array() && node.size() > 1) std::swap(node[place], node[dice.below(node.size())]);
  }
}

void change_node(json& root, Dice& dice) {
  std::vector<json*> nodes;
  collect(root, nodes);
  json& node = *dice.pick(nodes);
  const json other = dice.one_in(2) ? *dice.pick(nodes) : telling_value(dice);
  if (node.is_structured() && !dice.one_in(4)) return change_members(node, other, dice);
  if (node.is_number() && dice.one_in(2)) return change_number(node, dice);
  if (node.is_string() && dice.one_in(2)) {
    node = dice.changed(node.get<std::string>());
    return;
  }
  if (&node == &root) return;  // documents are objects
  node = other;
  if (dice.one_in(64)) {
    constexpr size_t kDeep = 70;  // more than any reader takes
    for (size_t depth = dice.below(kDeep); depth > 0; --depth) node = json::array({std::move(node)});
  }
}

bool is_yaml(const std::string& text) {
  try {
    YAML::Load(text);
    return true;
  } catch (const YAML::Exception&) {
    return false;
  }
}

std::string with_a_line_changed(const std::string& text, Dice& dice) {
  static const std::vector<std::string> values = {
      "",     "~",          "0",       "-1",          "1e999",   "nan",       ".inf", "9223372036854775808", "[]", "{}",
      "[1]",  "[1, 2, 3]",  "{a: 1}",  "{8: 0.5}",    "&a [*a]", "*a",        "!!x",  "\"\\x1b[31m\"",       "'",  "|",
      "true", "{a: [1, 2]", "? a : b", "1, 0.5, 0.1", "2x4",     "<<: {a: 1}"};
  const std::vector<std::string_view> parts = split_terminated(text, '\n');
  std::vector<std::string> lines(parts.begin(), parts.end());
  if (lines.empty()) lines.emplace_back("a: 1");
  const size_t at = dice.below(lines.size());
  std::string& line = lines[at];
  const size_t colon = std::min(line.find(": "), line.size());
  switch (dice.below(8)) {
    case 0:
      line = line.substr(0, colon) + ": " + dice.pick(values);
      break;
    case 1:
      line = line.substr(0, colon) + ": " + dice.changed(line.substr(std::min(line.size(), colon + 2)));
      break;
    case 2:
      line = dice.changed(line.substr(0, colon)) + line.substr(colon);
      break;
    case 3:
      line.insert(0, dice.below(5), ' ');
      break;
    case 4:
      line.erase(0, line.find_first_not_of(' '));
      break;
    case 5:
      lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(dice.below(lines.size())), line);
      break;
    case 6:
      lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    default:
      line = lines[dice.below(lines.size())];
  }
  std::string changed;
  for (const std::string& one : lines) changed += one + "\n";
  return changed.size() <= kMostText ? changed : text;
}

}  // namespace

std::string changed_json(const std::string& text, const std::string& fallback, Dice& dice) {
  if (dice.one_in(kAnyBytes)) return dice.changed(text);
  json root = json::parse(text, nullptr, false);
  if (root.is_discarded()) return fallback;
  change_node(root, dice);
  const std::string changed = root.dump(-1, ' ', false, json::error_handler_t::replace);
  return changed.size() <= kMostText ? changed : fallback;
}

std::string changed_lines(const std::string& text, Dice& dice) {
  if (dice.one_in(kAnyBytes)) return dice.changed(text);
  constexpr int kAttempts = 4;
  std::string changed;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    changed = with_a_line_changed(text, dice);
    if (is_yaml(changed)) return changed;
  }
  return changed;
}

}  // namespace zoetrope::fuzz
