// The text of --help in its parts, from which man pages and completions are made: keys are described once, where they
// are parsed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace zoetrope::cli {

// Every command, by name.
const std::vector<const Command*>& commands();

struct HelpPart {
  enum class Kind : uint8_t { kText, kKey, kTerm, kExample };
  Kind kind = Kind::kText;
  std::string name;  // of a key, or of a term: anything else that is explained next to its name
  std::string text;  // a paragraph; what the key is for, with its values in brackets; a command line
  std::vector<std::string> choices = {};  // of a key whose values are words
  bool any_text = false;                  // of a key whose value may be the name of a file
};

// Paragraphs, "  name  explanation" and example commands, in their order; without the line "Example:".
std::vector<HelpPart> parts_of_help(std::string_view text);

// The keys of a command, those of generate included where it takes them too.
std::vector<HelpPart> keys_of(const Command& command);

// What may follow a command as a whole word: the shells of completion, the commands of man, the modes of bench.
std::vector<std::string> words_of(const Command& command);

// Whether folders and files may follow as whole words.
bool takes_files(const Command& command);

// A man page (roff, man(7)) of one command, or of the program for null.
std::string man_page(const Command* command);

// A script that completes commands, keys and values: "bash", "zsh" or "fish".
std::string completion_script(const std::string& shell);

}  // namespace zoetrope::cli
