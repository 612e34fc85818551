// Options described once: from name, type, default, range and help, keys are parsed (YAML file and `key=value`),
// checked, printed as help and documented. Not a command line parser: see cli/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zoetrope/error.h"

namespace zoetrope {

// The legal values; the ends are included.
struct IntegerRange {
  int64_t low = INT64_MIN;
  int64_t high = INT64_MAX;
};
struct NumberRange {
  double low = -1e300;
  double high = 1e300;
};

// The origin of what set_argument() sets.
inline constexpr const char* kCommandLine = "command line";

// The value that resets any key: `ranks=default`.
inline constexpr const char* kDefaultValue = "default";

// Binds keys to the fields of an options struct. The fields' values at binding time are the defaults; std::optional
// fields have none and stay empty until set.
class OptionSet {
 public:
  OptionSet& text(const char* name, std::string& field, const char* help);
  // What people write in their own words, in which kDefaultValue is a word like others.
  OptionSet& prose(const char* name, std::string& field, const char* help);
  OptionSet& integer(const char* name, int64_t& field, IntegerRange range, const char* help);
  OptionSet& integer(const char* name, std::optional<int64_t>& field, IntegerRange range, const char* help);
  OptionSet& number(const char* name, double& field, NumberRange range, const char* help);
  OptionSet& number(const char* name, std::optional<double>& field, NumberRange range, const char* help);
  // Numbers with commas between them, or a YAML sequence; empty text is the empty list.
  OptionSet& numbers(const char* name, std::vector<double>& field, NumberRange each, const char* help);
  // A file of lines; or the lines themselves, each with a line feed at its end, as a YAML sequence gives them.
  OptionSet& lines(const char* name, std::string& field, const char* help);
  OptionSet& flag(const char* name, bool& field, const char* help);
  OptionSet& choice(const char* name, std::string& field, std::vector<std::string> legal, const char* help);
  // A word for each value. Field: Value or std::optional<Value>. `spelling` brings other spellings of a word to the
  // one that is listed.
  template <typename Field, typename Value>
  OptionSet& choice(const char* name, Field& field, const std::vector<std::pair<std::string, Value>>& words,
                    const char* help, std::string (*spelling)(std::string_view) = nullptr);
  // Anything that is written as text: `parse` throws Error with what would be right, `print` is its inverse.
  template <typename Field>
  OptionSet& value(const char* name, Field& field, std::string range, std::function<Field(std::string_view)> parse,
                   std::function<std::string(const Field&)> print, const char* help);
  // "bf16" or "float32", by any of their usual names: see dtype_spelling().
  OptionSet& dtype(const char* name, std::string& field, const char* help);
  // Named whole numbers >= 1, any of them; those that are not given become 0. YAML may write them as a mapping.
  // Names in `unused` are another program's, and dropped; a field's name in it only next to one that is no field's.
  OptionSet& sizes(const char* name, std::vector<std::pair<std::string, int64_t*>> fields, const char* help,
                   std::vector<std::string> unused = {});
  // YAML may give the text of a key that is already described as a list: its items with commas between them.
  OptionSet& or_list(const char* name);
  // Another name of a key that is already described.
  OptionSet& alias(const char* name, const char* target);
  // A key of other programs that is not supported, or that other keys replace: refused with `reason`, unless it has one
  // of its neutral values.
  OptionSet& unavailable(const char* name, const std::vector<std::string>& neutral, const char* reason);
  // A key of other programs that says what keys of this one say: `translate` returns those with their values, or
  // nothing where this value changes nothing here (it is then an ignored key). It throws Error for a value that does
  // not fit.
  using Settings = std::vector<std::pair<std::string, std::string>>;
  OptionSet& translated(const std::string& name,
                        std::function<std::optional<Settings>(std::string_view value)> translate);
  // A mapping that is for people and other programs: `check` throws Error where it has not its form.
  OptionSet& checked(const char* name, std::function<void(std::string_view)> check);
  // With each value that `name` is set to come those settings that `brings` returns: all of them, or those whose keys
  // were not set before. The next value, kDefaultValue too, takes back what was not set again since.
  enum class Brought : uint8_t { kAll, kUnset };
  OptionSet& accompanied(const char* name, Brought brought, std::function<Settings(std::string_view value)> brings);
  // Keys of other programs that change nothing here, whatever they say.
  OptionSet& ignored(const std::vector<const char*>& names);
  // `name`, a key of this program too, means something else in YAML files of another, which have the key `mark`: there
  // it is ignored with any of `values`; with none, whatever it says.
  OptionSet& ignored_beside(const char* mark, const char* name, std::vector<std::string> values);

  // Throws Error for an unknown key (naming the nearest known one) or a value that does not fit; `origin` says where it
  // was written ("command line", "wan.yml line 3"). kDefaultValue resets the field to its value at binding time, unless
  // it is prose.
  void set(std::string_view key, std::string_view value, const std::string& origin);
  // "key=value".
  void set_argument(std::string_view argument);
  // A flat YAML mapping. Throws Error with file and line.
  void load_yaml(const std::filesystem::path& path);

  // Where `key` was set last (kCommandLine, "wan.yml line 3"), empty if it has its default.
  std::string origin(std::string_view key) const;
  // Whether it was set, also to its default.
  bool is_given(std::string_view key) const;
  // The ignored keys that were set, in the order of the first time.
  const std::vector<std::string>& ignored_keys() const { return ignored_; }
  bool knows(std::string_view key) const { return find(key) != nullptr; }

  // The message of an Error with the place where each key=value of it was written: "ulysses_shards=2 (wan.yml line 3)
  // does not divide …". A message that begins with a key ("prompt: …") gets the place of that one.
  std::string with_origins(const std::string& message) const;

  // The lines of --help: key, default, range and what it is for, in the order of description.
  std::string help() const;
  // The same as a Markdown table, for the documentation.
  std::string markdown() const;
  // Every key and its current value.
  std::vector<std::pair<std::string, std::string>> settings() const;
  // The same as lines key=value, for logs and for comparing ranks.
  std::string values() const;

 private:
  // A setting that came with another, and what it replaced.
  struct Companion {
    std::string key, text_before, origin_before;
    int64_t times_set;  // of its key, when it came
  };
  struct Option {
    std::string name;
    std::string help;
    std::string default_text;
    std::string range;
    std::string origin;
    std::string alias_of;
    bool ignored = false;
    bool prose = false;
    std::function<std::optional<Settings>(std::string_view)> translate;
    std::function<Settings(std::string_view)> brings;
    Brought brought = Brought::kAll;
    std::vector<Companion> companions;  // of its value
    int64_t times_set = 0;
    bool mapping = false;                         // YAML may give a mapping of scalars
    char after_item = 0;                          // YAML may give a sequence of scalars, with this after each
    std::function<void(std::string_view)> parse;  // throws Error with the legal values, without key or origin
    std::function<std::string()> print;
    std::function<void()> reset;
  };
  // In files with the key `mark`.
  struct Elsewhere {
    std::string mark, name;
    std::vector<std::string> values;
  };
  bool is_ignored_beside(const std::function<bool(const std::string&)>& has, std::string_view key,
                         std::string_view value) const;
  void note_ignored(std::string_view key);
  void take_back_companions(Option& option);
  void bring_companions(Option& option, std::string_view value, const std::string& origin);
  Option& add(const char* name, const char* help);
  template <typename Field>
  Option& add(const char* name, const char* help, Field& field, std::string range,
              std::function<void(std::string_view)> parse, std::function<std::string()> print) {
    Option& option = add(name, help);
    option.range = std::move(range);
    option.parse = std::move(parse);
    option.print = std::move(print);
    option.default_text = option.print();
    option.reset = [&field, initial = field] { field = initial; };
    return option;
  }
  // Throws Error for a word that is not legal, with the nearest; returns its place.
  static size_t find_word(std::string_view word, const std::vector<std::string>& legal);
  static std::string listed(const std::vector<std::string>& words);
  Option* find(std::string_view key);
  const Option* find(std::string_view key) const;
  std::vector<Option> options_;
  std::vector<Elsewhere> elsewhere_;
  std::vector<std::string> ignored_;
};

// One number, or true or false in any spelling of a flag. Throw Error for what is none, or out of range.
int64_t parse_integer(std::string_view text, IntegerRange range);
double parse_number(std::string_view text, NumberRange range);
bool parse_flag(std::string_view text);

// `1, 0.75, 0.5`, with or without brackets and spaces; empty text gives an empty list. Throws Error for what is not a
// number or out of range, with its place in the list.
std::vector<double> parse_numbers(std::string_view text, NumberRange each);

// "float32" for "f32" and "fp32", "bf16" for "bfloat16"; any other word unchanged.
std::string dtype_spelling(std::string_view word);

// The candidate that `word` probably means: the one that other programs call so (steps: num_inference_steps), else the
// one with the smallest edit distance, where swapping two neighbouring letters is one edit. Empty if the distance is
// more than a third of the letters.
std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates);

// Returns function(); in its errors each key=value is followed by the file or command line that set it.
template <typename Function>
auto with_origins(const OptionSet& set, Function&& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw Error(set.with_origins(error.what()));
  }
}

template <typename Field, typename Value>
OptionSet& OptionSet::choice(const char* name, Field& field, const std::vector<std::pair<std::string, Value>>& words,
                             const char* help, std::string (*spelling)(std::string_view)) {
  std::vector<std::string> legal;
  for (const auto& word : words) legal.push_back(word.first);
  const std::string range = listed(legal);
  add(
      name, help, field, range,
      [&field, words, legal, spelling](std::string_view word) {
        field = words[find_word(spelling != nullptr ? spelling(word) : std::string(word), legal)].second;
      },
      [&field, words] {
        for (const auto& word : words)
          if (field == word.second) return word.first;
        return std::string();
      });
  return *this;
}

template <typename Field>
OptionSet& OptionSet::value(const char* name, Field& field, std::string range,
                            std::function<Field(std::string_view)> parse,
                            std::function<std::string(const Field&)> print, const char* help) {
  add(
      name, help, field, std::move(range),
      [&field, parse = std::move(parse)](std::string_view text) { field = parse(text); },
      [&field, print = std::move(print)] { return print(field); });
  return *this;
}

}  // namespace zoetrope
