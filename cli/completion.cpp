#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "cli/help_text.h"

namespace zoetrope::cli {
namespace {

// In single quotes for a POSIX shell and zsh.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += "'\\''";
    else out += c;
  }
  return out + "'";
}

// Of fish, where a backslash means itself only before other letters.
std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

// "COMMAND.KEY) DOES; ;;" for every key whose values are words.
template <typename Does>
std::string cases_of_choices(const Does& does) {
  std::string text;
  for (const Command* command : commands()) {
    for (const HelpPart& key : keys_of(*command)) {
      if (key.choices.empty()) continue;
      text += fmt::format("    {}.{}) {} ;;\n", command->name, key.name, does(key.choices));
    }
  }
  return text;
}

std::string bash() {
  std::string names, keys;
  for (const Command* command : commands()) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", command->name);
    std::string own;
    for (const std::string& word : words_of(*command)) own += fmt::format(" {}", word);
    for (const HelpPart& key : keys_of(*command)) own += fmt::format(" {}=", key.name);
    keys += fmt::format("    {}) keys='{}' ;;\n", command->name, own);
  }
  const std::string values =
      cases_of_choices([](const auto& choices) { return fmt::format("values='{}'", fmt::join(choices, " ")); });
  // Readline takes what follows = for a word of its own, unless COMP_WORDBREAKS is changed.
  return fmt::format(R"(# bash completion of zoetrope: source <(zoetrope completion bash)
_zoetrope() {{
  local line=${{COMP_LINE:0:COMP_POINT}}
  local word=${{line##*[[:space:]]}}
  local -a words
  read -ra words <<<"$line"
  local command=${{words[1]}} keys='' values='' key before
  COMPREPLY=()
  if ((${{#words[@]}} < 2)) || [[ ${{#words[@]}} -eq 2 && -n $word ]]; then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$word"))
    return
  fi
  if [[ $word != *=* ]]; then
    case $command in
{}    esac
    COMPREPLY=($(compgen -W "$keys" -- "$word"))
    if ((${{#COMPREPLY[@]}})); then
      [[ ${{COMPREPLY[0]}} != *= ]] || compopt -o nospace 2>/dev/null
    else
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
    return
  fi
  key=${{word%%=*}}
  before=''
  [[ $COMP_WORDBREAKS == *=* ]] || before="$key="
  case $command.$key in
{}  esac
  if [[ -n $values ]]; then
    COMPREPLY=($(compgen -P "$before" -W "$values" -- "${{word#*=}}"))
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -P "$before" -f -- "${{word#*=}}")
  fi
}}
complete -F _zoetrope zoetrope
)",
                     names, keys, values);
}

// A word of _describe: "name:what it is", with colons in the name escaped (there are none).
std::string described(const std::string& name, const std::string& text) { return quoted(name + ":" + text); }

std::string zsh() {
  std::string names, keys;
  for (const Command* command : commands()) {
    names += fmt::format("    {}\n", described(command->name, command->summary));
    if (const std::vector<std::string> own = words_of(*command); !own.empty()) {
      keys += fmt::format("    {}) compadd -- {}; return ;;\n", command->name, fmt::join(own, " "));
      continue;
    }
    std::string own;
    for (const HelpPart& key : keys_of(*command)) own += fmt::format("      {}\n", described(key.name, key.text));
    keys += fmt::format("    {}) keys=(\n{}    ) ;;\n", command->name, own);
  }
  const std::string values =
      cases_of_choices([](const auto& choices) { return fmt::format("compadd -- {}", fmt::join(choices, " ")); });
  return fmt::format(R"(#compdef zoetrope
# zsh completion of zoetrope: in a folder of $fpath as _zoetrope, or source <(zoetrope completion zsh)
_zoetrope() {{
  local -a commands keys
  commands=(
{})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2] key=${{words[CURRENT]%%=*}}
  if compset -P '*='; then
    case $command.$key in
{}    *) _files ;;
    esac
    return
  fi
  case $command in
{}  esac
  _describe -t keys key keys -S =
  _files
}}
if [[ $funcstack[1] == _zoetrope ]]; then
  _zoetrope "$@"
elif (( $+functions[compdef] )); then
  compdef _zoetrope zoetrope
fi
)",
                     names, values, keys);
}

std::string fish() {
  std::string text = "# fish completion of zoetrope: zoetrope completion fish | source\n";
  for (const Command* command : commands()) {
    text += fmt::format("complete -c zoetrope -n __fish_use_subcommand -f -a {} -d {}\n", command->name,
                        fish_quoted(command->summary));
  }
  for (const Command* command : commands()) {
    if (const std::vector<std::string> own = words_of(*command); !own.empty()) {
      text += fmt::format("complete -c zoetrope -n 'test (commandline -opc)[2] = {}' -f -a {}\n", command->name,
                          fish_quoted(fmt::format("{}", fmt::join(own, " "))));
    }
    for (const HelpPart& key : keys_of(*command)) {
      std::string words = key.name + "=";
      for (const std::string& choice : key.choices) words += fmt::format(" {}={}", key.name, choice);
      text += fmt::format("complete -c zoetrope -n 'test (commandline -opc)[2] = {}' -a {} -d {}\n", command->name,
                          fish_quoted(words), fish_quoted(key.text));
    }
  }
  return text;
}

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return bash();
  if (shell == "zsh") return zsh();
  if (shell == "fish") return fish();
  fail("completion: '{}' is no shell that it knows; there are: bash, zsh, fish", shell);
}

}  // namespace zoetrope::cli
