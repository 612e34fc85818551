// Options from YAML files. Apart from options.cpp, so that a program without YAML needs no library for it.
#include <algorithm>

#include "base/error.h"
#include "base/options.h"
#include "base/words.h"
#include "base/yaml.h"

namespace zoetrope {
namespace {

std::string scalar_text(const YAML::Node& node) { return node.IsNull() ? "" : node.Scalar(); }

// {a: 1, b: 2} as "a:1,b:2"; in {a:1} without the blank YAML sees a key "a:1" and no value.
std::string mapping_text(const YAML::Node& node, const std::string& origin) {
  std::string text;
  for (const auto& entry : node) {
    if (!entry.first.IsScalar() || !(entry.second.IsScalar() || entry.second.IsNull()))
      fail("{}: the mapping must hold single values only, as `name: value`", origin);
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ",", entry.first.Scalar(), entry.second.IsNull() ? "" : ":",
                        scalar_text(entry.second));
  }
  return text;
}

// [1, 2] as "1,2"; with line feeds as "1\n2\n", where those inside of an item become blanks.
std::string sequence_text(const YAML::Node& node, char after, const std::string& origin) {
  std::string text;
  for (const auto& item : node) {
    if (!item.IsScalar()) fail("{}: the list must hold single {}", origin, after == ',' ? "numbers" : "texts");
    std::string words = item.Scalar();
    if (after == '\n') {
      std::replace(words.begin(), words.end(), '\n', ' ');
      if (trimmed(words, " \t\r\v\f").empty()) fail("{}: the list has an empty text", origin);
    }
    text += words + after;
  }
  if (after == ',' && !text.empty()) text.pop_back();
  return text;
}

}  // namespace

void OptionSet::load_yaml(const std::filesystem::path& path) {
  const YAML::Node root = read_yaml(path);
  if (!root.IsMap()) fail("{}: must hold `key: value` lines", path.string());
  for (const auto& entry : root) {
    const std::string origin = fmt::format("{} line {}", path.string(), entry.first.Mark().line + 1);
    const Option* option = entry.first.IsScalar() ? find(entry.first.Scalar()) : nullptr;
    const bool elsewhere = option != nullptr && entry.second.IsScalar() &&
                           is_ignored_beside([&](const std::string& mark) { return root[mark].IsDefined(); },
                                             entry.first.Scalar(), entry.second.Scalar());
    if (elsewhere || (option != nullptr && option->ignored)) {
      note_ignored(entry.first.Scalar());
      continue;
    }
    const bool mapping = option != nullptr && option->mapping && entry.second.IsMap();
    const bool sequence = option != nullptr && option->after_item != 0 && entry.second.IsSequence();
    if (!entry.first.IsScalar() || !(entry.second.IsScalar() || entry.second.IsNull() || mapping || sequence)) {
      fail("{}: the value must be a single word, number or text", origin);
    }
    const std::string value = mapping    ? mapping_text(entry.second, origin)
                              : sequence ? sequence_text(entry.second, option->after_item, origin)
                                         : scalar_text(entry.second);
    set(entry.first.Scalar(), value, origin);
  }
}

}  // namespace zoetrope
