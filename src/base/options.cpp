#include "base/options.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/words.h"

namespace zoetrope {

int64_t parse_integer(std::string_view text, IntegerRange range) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size();
  if (whole && error == std::errc::result_out_of_range) {  // of 64 bits
    fail("{} is out of range; {} to {} is allowed", text, range.low, range.high);
  }
  if (!whole || error != std::errc()) fail("'{}' is not a whole number", text);
  if (value < range.low || value > range.high) {
    if (range.high == INT64_MAX) fail("{} is too small; {} is the least", value, range.low);
    fail("{} is out of range; {} to {} is allowed", value, range.low, range.high);
  }
  return value;
}

double parse_number(std::string_view text, NumberRange range) {
  const std::optional<double> value = to_number<double>(text);
  if (!value || !std::isfinite(*value)) fail("'{}' is not a finite number", text);
  if (*value < range.low || *value > range.high)
    fail("{} is out of range; {} to {} is allowed", *value, range.low, range.high);
  return *value;
}

bool parse_flag(std::string_view text) {
  for (const std::string_view word : {"true", "1", "yes", "True"})
    if (text == word) return true;
  for (const std::string_view word : {"false", "0", "no", "False"})
    if (text == word) return false;
  fail("'{}' is neither true nor false", text);
}

namespace {

std::string range_text(IntegerRange range) {
  if (range.low == INT64_MIN && range.high == INT64_MAX) return "integer";
  if (range.high == INT64_MAX) return fmt::format("integer >= {}", range.low);
  return fmt::format("{} … {}", range.low, range.high);
}

std::string range_text(NumberRange range) {
  if (range.low <= -1e300 && range.high >= 1e300) return "number";
  return fmt::format("{} … {}", range.low, range.high);
}

// `rows: 8, columns: 4`, with or without braces and spaces, as (name, text).
std::vector<std::pair<std::string, std::string_view>> split_sizes(std::string_view text, const std::string& names) {
  text = trimmed(text);
  if (text.starts_with('{') && text.ends_with('}')) text = trimmed(text.substr(1, text.size() - 2));
  std::vector<std::pair<std::string, std::string_view>> parts;
  for (std::string_view part : split_terminated(text, ',')) {
    part = trimmed(part);
    const size_t colon = part.find(':');
    if (colon == std::string_view::npos) fail("'{}' is not of the form name:number; names: {}", part, names);
    parts.emplace_back(trimmed(part.substr(0, colon)), trimmed(part.substr(colon + 1)));
  }
  return parts;
}

// The same as (name, value). Throws Error for a name that is not legal or is repeated, and for a value that is not a
// whole number >= 1. Names in `unused` are left out; one that is legal too, where another of `unused` is beside it.
std::vector<std::pair<std::string, int64_t>> parse_sizes(std::string_view text, const std::vector<std::string>& legal,
                                                         const std::vector<std::string>& unused) {
  const auto in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const std::string names = fmt::format("{}", fmt::join(legal, ", "));
  const auto parts = split_sizes(text, names);
  const bool others = std::any_of(parts.begin(), parts.end(),
                                  [&](const auto& part) { return in(unused, part.first) && !in(legal, part.first); });
  std::vector<std::pair<std::string, int64_t>> sizes;
  for (const auto& [name, value] : parts) {
    if (others && in(unused, name)) continue;
    if (!in(legal, name)) fail("'{}' is unknown; one of: {}", name, names);
    for (const auto& size : sizes)
      if (size.first == name) fail("{} is given twice", name);
    try {
      sizes.emplace_back(name, parse_integer(value, {1, INT64_MAX}));
    } catch (const Error& error) {
      fail("{}: {}", name, error.what());
    }
  }
  return sizes;
}

// The position after the first `name=value` of a sentence that is not part of a longer name or value.
size_t end_of_setting(const std::string& text, const std::string& name, const std::string& value) {
  const auto ends_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '.';
  };
  const std::string setting = fmt::format("{}={}", name, value);
  for (size_t at = text.find(setting); !value.empty() && at != std::string::npos; at = text.find(setting, at + 1)) {
    const size_t end = at + setting.size();
    const bool begins = at == 0 || ends_name(text[at - 1]);
    if (begins && (end == text.size() || std::string_view(" ,;:)").find(text[end]) != std::string_view::npos))
      return end;
  }
  return std::string::npos;
}

}  // namespace

std::vector<double> parse_numbers(std::string_view text, NumberRange each) {
  text = trimmed(text);
  if (text.starts_with('[') && text.ends_with(']')) text = trimmed(text.substr(1, text.size() - 2));
  std::vector<double> values;
  if (text.empty()) return values;
  for (const std::string_view part : split(text, ',')) {
    try {
      values.push_back(parse_number(trimmed(part), each));
    } catch (const Error& error) {
      fail("value {}: {}", values.size() + 1, error.what());
    }
  }
  return values;
}

OptionSet::Option& OptionSet::add(const char* name, const char* help) {
  ZT_CHECK(find(name) == nullptr, "option {} described twice", name);
  Option& option = options_.emplace_back();
  option.name = name;
  option.help = help;
  return option;
}

OptionSet& OptionSet::text(const char* name, std::string& field, const char* help) {
  add(
      name, help, field, "text", [&field](std::string_view value) { field = value; }, [&field] { return field; });
  return *this;
}

OptionSet& OptionSet::prose(const char* name, std::string& field, const char* help) {
  text(name, field, help);
  options_.back().prose = true;
  return *this;
}

OptionSet& OptionSet::integer(const char* name, int64_t& field, IntegerRange range, const char* help) {
  add(
      name, help, field, range_text(range),
      [&field, range](std::string_view value) { field = parse_integer(value, range); },
      [&field] { return fmt::to_string(field); });
  return *this;
}

OptionSet& OptionSet::integer(const char* name, std::optional<int64_t>& field, IntegerRange range, const char* help) {
  add(
      name, help, field, range_text(range),
      [&field, range](std::string_view value) { field = parse_integer(value, range); },
      [&field] { return field ? fmt::to_string(*field) : ""; });
  return *this;
}

OptionSet& OptionSet::number(const char* name, double& field, NumberRange range, const char* help) {
  add(
      name, help, field, range_text(range),
      [&field, range](std::string_view value) { field = parse_number(value, range); },
      [&field] { return fmt::to_string(field); });
  return *this;
}

OptionSet& OptionSet::number(const char* name, std::optional<double>& field, NumberRange range, const char* help) {
  add(
      name, help, field, range_text(range),
      [&field, range](std::string_view value) { field = parse_number(value, range); },
      [&field] { return field ? fmt::to_string(*field) : ""; });
  return *this;
}

OptionSet& OptionSet::numbers(const char* name, std::vector<double>& field, NumberRange each, const char* help) {
  add(
      name, help, field, fmt::format("list of {}", range_text(each)),
      [&field, each](std::string_view value) { field = parse_numbers(value, each); },
      [&field] { return fmt::format("{}", fmt::join(field, ",")); })
      .after_item = ',';
  return *this;
}

OptionSet& OptionSet::lines(const char* name, std::string& field, const char* help) {
  text(name, field, help);
  options_.back().range = "file, list";
  options_.back().after_item = '\n';
  return *this;
}

OptionSet& OptionSet::flag(const char* name, bool& field, const char* help) {
  const auto parse = [&field](std::string_view value) { field = parse_flag(value); };
  add(name, help, field, "true, false", parse, [&field] { return field ? "true" : "false"; });
  return *this;
}

std::string OptionSet::listed(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

size_t OptionSet::find_word(std::string_view word, const std::vector<std::string>& legal) {
  const auto at = std::find(legal.begin(), legal.end(), word);
  if (at != legal.end()) return static_cast<size_t>(at - legal.begin());
  const std::string near = nearest_name(word, legal);
  fail("'{}' is unknown{}; one of: {}", word, near.empty() ? "" : fmt::format(" (did you mean {}?)", near),
       listed(legal));
}

OptionSet& OptionSet::choice(const char* name, std::string& field, std::vector<std::string> legal, const char* help) {
  const std::string range = listed(legal);
  const auto parse = [&field, legal = std::move(legal)](std::string_view value) {
    field = legal[find_word(value, legal)];
  };
  add(name, help, field, range, parse, [&field] { return field; });
  return *this;
}

OptionSet& OptionSet::dtype(const char* name, std::string& field, const char* help) {
  choice(name, field, {"bf16", "float32"}, help);
  Option& option = options_.back();
  option.parse = [parse = option.parse](std::string_view value) { parse(dtype_spelling(value)); };
  return *this;
}

OptionSet& OptionSet::sizes(const char* name, std::vector<std::pair<std::string, int64_t*>> fields, const char* help,
                            std::vector<std::string> unused) {
  std::vector<std::string> legal;
  for (const auto& field : fields) legal.push_back(field.first);
  Option& option = add(name, help);
  option.range = fmt::format("{{{}}}", fmt::join(legal, ", "));
  option.mapping = true;
  option.print = [fields] {
    std::string text;
    for (const auto& [size, value] : fields)
      if (*value != 0) text += fmt::format("{}{}:{}", text.empty() ? "" : ",", size, *value);
    return text;
  };
  option.parse = [fields, legal, unused = std::move(unused)](std::string_view text) {
    const auto sizes = parse_sizes(text, legal, unused);
    for (const auto& field : fields) *field.second = 0;
    for (const auto& [size, value] : sizes) *fields[find_word(size, legal)].second = value;
  };
  option.default_text = option.print();
  option.reset = [parse = option.parse, initial = option.default_text] { parse(initial); };
  return *this;
}

OptionSet& OptionSet::alias(const char* name, const char* target) {
  ZT_CHECK(find(target) != nullptr, "alias of {}", target);
  add(name, "").alias_of = target;
  return *this;
}

OptionSet& OptionSet::or_list(const char* name) {
  Option* option = find(name);
  ZT_CHECK(option != nullptr, "option {}", name);
  option->after_item = ',';
  return *this;
}

OptionSet& OptionSet::unavailable(const char* name, const std::vector<std::string>& neutral, const char* reason) {
  add(name, "").parse = [neutral, reason = std::string(reason)](std::string_view value) {
    if (std::find(neutral.begin(), neutral.end(), value) == neutral.end()) fail("{}", reason);
  };
  return *this;
}

OptionSet& OptionSet::translated(const std::string& name,
                                 std::function<std::optional<Settings>(std::string_view value)> translate) {
  add(name.c_str(), "").translate = std::move(translate);
  return *this;
}

OptionSet& OptionSet::checked(const char* name, std::function<void(std::string_view)> check) {
  Option& option = add(name, "");
  option.mapping = true;
  option.parse = std::move(check);
  return *this;
}

OptionSet& OptionSet::accompanied(const char* name, Brought brought,
                                  std::function<Settings(std::string_view value)> brings) {
  Option* option = find(name);
  ZT_CHECK(option != nullptr, "option {}", name);
  option->brings = std::move(brings);
  option->brought = brought;
  return *this;
}

OptionSet& OptionSet::ignored(const std::vector<const char*>& names) {
  for (const char* name : names) add(name, "").ignored = true;
  return *this;
}

OptionSet& OptionSet::ignored_beside(const char* mark, const char* name, std::vector<std::string> values) {
  ZT_CHECK(find(name) != nullptr, "option {}", name);
  elsewhere_.push_back({mark, name, std::move(values)});
  return *this;
}

bool OptionSet::is_ignored_beside(const std::function<bool(const std::string&)>& has, std::string_view key,
                                  std::string_view value) const {
  return std::any_of(elsewhere_.begin(), elsewhere_.end(), [&](const Elsewhere& e) {
    const bool meant = e.values.empty() || std::find(e.values.begin(), e.values.end(), value) != e.values.end();
    return e.name == key && meant && has(e.mark);
  });
}

void OptionSet::note_ignored(std::string_view key) {
  if (std::find(ignored_.begin(), ignored_.end(), key) == ignored_.end()) ignored_.emplace_back(key);
}

const OptionSet::Option* OptionSet::find(std::string_view key) const {
  const auto at = std::find_if(options_.begin(), options_.end(), [&](const Option& o) { return o.name == key; });
  if (at == options_.end()) return nullptr;
  return at->alias_of.empty() ? &*at : find(at->alias_of);
}

OptionSet::Option* OptionSet::find(std::string_view key) {
  return const_cast<Option*>(static_cast<const OptionSet*>(this)->find(key));
}

void OptionSet::set(std::string_view key, std::string_view value, const std::string& origin) {
  Option* option = find(key);
  if (option == nullptr) {
    std::vector<std::string> names;
    for (const Option& o : options_)
      if (!o.ignored) names.push_back(o.name);
    const std::string near = nearest_name(key, names);
    // Other origins may be of no program: calls of Python, requests.
    const char* const list = origin == kCommandLine ? "--help" : "docs/configuration.md";
    fail("{}: unknown key '{}'; {}", origin, key,
         near.empty() ? fmt::format("{} lists the keys", list) : fmt::format("did you mean '{}'?", near));
  }
  if (option->ignored) return note_ignored(key);
  if (option->translate) {
    std::optional<Settings> settings;
    try {
      settings = option->translate(value);
    } catch (const Error& error) {
      fail("{}: {}={}: {}", origin, key, value, error.what());
    }
    if (!settings) return note_ignored(key);
    option->origin = origin;
    for (const auto& [target, text] : *settings) set(target, text, fmt::format("{}, as {}", origin, key));
    return;
  }
  ++option->times_set;
  if (value == kDefaultValue && !option->prose) {
    if (option->reset) option->reset();
    option->origin.clear();
    return take_back_companions(*option);
  }
  try {
    option->parse(value);
  } catch (const Error& error) {
    fail("{}: {}={}: {}", origin, key, value, error.what());
  }
  option->origin = origin;
  if (option->brings) bring_companions(*option, value, origin);
}

void OptionSet::take_back_companions(Option& option) {
  for (const Companion& companion : std::exchange(option.companions, {})) {
    if (find(companion.key)->times_set != companion.times_set) continue;
    const bool was_default = companion.origin_before.empty();
    set(companion.key, was_default ? kDefaultValue : companion.text_before, companion.origin_before);
  }
}

void OptionSet::bring_companions(Option& option, std::string_view value, const std::string& origin) {
  take_back_companions(option);
  for (const auto& [key, text] : option.brings(value)) {
    const Option* target = find(key);
    ZT_CHECK(target != nullptr, "option {}", key);
    if (option.brought == Brought::kUnset && !target->origin.empty()) continue;
    option.companions.push_back({key, target->print(), target->origin, target->times_set + 1});
    set(key, text, fmt::format("{}, with {}", origin, option.name));
  }
}

bool OptionSet::is_given(std::string_view key) const {
  const Option* option = find(key);
  ZT_CHECK(option != nullptr, "option {}", key);
  return option->times_set > 0;
}

void OptionSet::set_argument(std::string_view argument) {
  const size_t equals = argument.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    fail("{}: '{}' is not of the form key=value", kCommandLine, argument);
  }
  const Option* option = find(argument.substr(0, equals));
  if (option != nullptr && option->mapping && !option->print) {
    fail("{}: {} is a table that only files have; leave it out", kCommandLine, option->name);
  }
  set(argument.substr(0, equals), argument.substr(equals + 1), kCommandLine);
}

std::string OptionSet::origin(std::string_view key) const {
  const Option* option = find(key);
  ZT_CHECK(option != nullptr, "option {}", key);
  return option->origin;
}

std::string OptionSet::with_origins(const std::string& message) const {
  std::string text = message;
  for (const Option& o : options_) {
    if (o.origin.empty()) continue;
    const std::string place = fmt::format(" ({})", o.origin);
    if (!o.print) {  // translated: its text is no longer known
      if (text.starts_with(o.name + "=")) text.insert(std::min(text.find(": "), text.size()), place);
      continue;
    }
    const size_t end = end_of_setting(text, o.name, o.print());
    if (end != std::string::npos) text.insert(end, place);
    else if (text.starts_with(o.name + ":")) text.insert(o.name.size(), place);
  }
  return text;
}

std::string OptionSet::help() const {
  size_t width = 0;
  for (const Option& o : options_)
    if (o.print) width = std::max(width, o.name.size());
  std::string text;
  for (const Option& o : options_) {
    if (!o.print) continue;
    text += fmt::format("  {:<{}}  {} [{}{}]\n", o.name, width, o.help, o.range,
                        o.default_text.empty() ? "" : fmt::format("; default {}", o.default_text));
  }
  return text;
}

std::string OptionSet::markdown() const {
  std::string text = "| key | meaning | values | default |\n|---|---|---|---|\n";
  for (const Option& o : options_) {
    if (!o.print) continue;
    text += fmt::format("| `{}` | {} | {} | {} |\n", o.name, o.help, o.range, o.default_text);
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> OptionSet::settings() const {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Option& o : options_) {
    if (o.print) settings.emplace_back(o.name, o.print());
  }
  return settings;
}

std::string OptionSet::values() const {
  std::string text;
  for (const auto& [key, value] : settings()) text += fmt::format("{}={}\n", key, value);
  return text;
}

}  // namespace zoetrope
