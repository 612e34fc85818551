#include "cli/help_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/words.h"

namespace zoetrope::cli {
namespace {

using Kind = HelpPart::Kind;

bool is_key(const HelpPart& part) {
  return part.text.ends_with(']') && part.name.find_first_of(" ,=.") == std::string::npos;
}

// "auto, ring" of "… [auto, ring; default auto]".
std::string range_in(const std::string& text) {
  const size_t open = text.rfind(" [");
  if (open == std::string::npos) return "";
  const std::string range = text.substr(open + 2, text.size() - open - 3);
  return range.substr(0, range.find("; default"));
}

// The words of such a range; empty where values are no words.
std::vector<std::string> choices_in(const std::string& range) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin < range.size();) {
    const size_t end = std::min(range.find(", ", begin), range.size());
    if (const std::string word = range.substr(begin, end - begin); word != "…") words.push_back(word);
    begin = end + 2;
  }
  const auto is_no_word = [](const std::string& word) {
    return word == "file" || word == "text" || word == "list" || word == "integer" || word == "number" ||
           word.find_first_of(" =<>{") != std::string::npos;
  };
  if (words.empty() || std::any_of(words.begin(), words.end(), is_no_word)) return {};
  return words;
}

bool is_command_line(std::string_view line) {
  return line.starts_with("  zoetrope ") || line == "  zoetrope" || line.starts_with("  mpirun ");
}

}  // namespace

std::vector<HelpPart> parts_of_help(std::string_view text) {
  std::vector<HelpPart> parts;
  bool goes_on = false;  // the last part, on the next line
  for (const std::string_view line : split(text, '\n')) {
    if (trimmed(line).empty() || line == "Example:" || line == "Examples:") {
      goes_on = false;
      continue;
    }
    const size_t gap = line.find("  ", 2);
    const bool indented = line.starts_with("  "), deeper = line.starts_with("    ");
    if (is_command_line(line)) {
      parts.push_back({Kind::kExample, "", std::string(trimmed(line))});
      goes_on = line.ends_with('\\');
    } else if (goes_on && parts.back().kind == Kind::kExample) {
      parts.back().text += fmt::format("\n    {}", trimmed(line));
      goes_on = line.ends_with('\\');
    } else if (indented && !deeper && gap != line.npos) {
      parts.push_back({Kind::kTerm, std::string(trimmed(line.substr(0, gap))), std::string(trimmed(line.substr(gap)))});
      goes_on = true;
    } else if (goes_on && (parts.back().kind == Kind::kText ? !indented : deeper)) {
      parts.back().text += fmt::format(" {}", trimmed(line));
    } else {
      parts.push_back({Kind::kText, "", std::string(trimmed(line))});
      goes_on = true;
    }
  }
  for (HelpPart& part : parts) {
    if (part.kind != Kind::kTerm || !is_key(part)) continue;
    part.kind = Kind::kKey;
    const std::string range = range_in(part.text);
    part.choices = choices_in(range);
    part.any_text = range == "text" || range.starts_with("file");
  }
  return parts;
}

std::vector<HelpPart> keys_of(const Command& command) {
  std::vector<HelpPart> keys;
  std::set<std::string> known;
  const auto add = [&](const Command& from) {
    for (HelpPart& part : parts_of_help(from.help()))
      if (part.kind == Kind::kKey && known.insert(part.name).second) keys.push_back(std::move(part));
  };
  add(command);
  if (command.takes_keys_of_generate) add(kGenerate);
  return keys;
}

std::vector<std::string> words_of(const Command& command) {
  if (&command == &kCompletion) return {"bash", "zsh", "fish"};
  std::vector<std::string> words;
  if (&command == &kMan)
    for (const Command* each : commands()) words.emplace_back(each->name);
  // Modes have a heading each: "bench kernel: …".
  const std::string start = fmt::format("{} ", command.name);
  if (&command == &kBench) {
    for (const HelpPart& part : parts_of_help(command.help())) {
      if (part.kind == Kind::kText && part.text.starts_with(start))
        words.push_back(part.text.substr(start.size(), part.text.find(':') - start.size()));
    }
  }
  return words;
}

bool takes_files(const Command& command) {
  const std::string_view synopsis = command.synopsis;
  return synopsis.starts_with("MODEL") || synopsis.starts_with("CONFIG") || synopsis.starts_with("IN ");
}

}  // namespace zoetrope::cli
