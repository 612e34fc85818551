// zoetrope man and zoetrope completion: what --help says, for man(1) and for shells.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/print.h"
#include "cli/help_text.h"

namespace zoetrope::cli {
namespace {

std::string completion_help() {
  return "Prints a script that completes commands, keys and values.\n\n"
         "Examples:\n  zoetrope completion bash > ~/.local/share/bash-completion/completions/zoetrope\n"
         "  zoetrope completion fish > ~/.config/fish/completions/zoetrope.fish\n";
}

std::string man_help() {
  return "Prints the man page of a command, or of the program, in roff.\n\n"
         "Example:\n  zoetrope man generate | man -l -\n";
}

int print_completion(const std::vector<std::string>& words, comm::Communicator* world) {
  if (words.size() != 1) fail("completion takes one word: bash, zsh or fish");
  if (world == nullptr || world->rank() == 0) print_text(completion_script(words[0]));
  return 0;
}

int print_man_page(const std::vector<std::string>& words, comm::Communicator* world) {
  if (words.size() > 1) fail("man takes one command, or none: zoetrope man generate");
  const auto named = [&](const Command* command) { return words[0] == command->name; };
  const auto found = words.empty() ? commands().end() : std::find_if(commands().begin(), commands().end(), named);
  if (!words.empty() && found == commands().end()) fail("man: there is no command '{}'; see zoetrope --help", words[0]);
  if (world == nullptr || world->rank() == 0) print_text(man_page(words.empty() ? nullptr : *found));
  return 0;
}

}  // namespace

const Command kCompletion = {"completion",    "bash|zsh|fish", "Print a script that completes words in a shell",
                             completion_help, nullptr,         print_completion};
const Command kMan = {"man", "[COMMAND]", "Print a man page", man_help, nullptr, print_man_page};

}  // namespace zoetrope::cli
