#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "cli/help_text.h"
#include "io/weights/tensor_file.h"

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

// Endings of files that are words of their own: settings and weights. Folders are too.
std::vector<std::string_view> file_endings() {
  std::vector<std::string_view> endings = {"yml", "yaml"};
  for (const std::string_view ending : io::weight_file_endings()) endings.push_back(ending.substr(1));
  return endings;
}

// "COMMAND.KEY) DOES; ;;" for every key whose values are words, and for those whose values may be files.
template <typename Does>
std::string cases_of_values(const Does& does, std::string_view files) {
  std::string text;
  std::vector<std::string> with_files;
  for (const Command* command : commands()) {
    for (const HelpPart& key : keys_of(*command)) {
      const std::string name = fmt::format("{}.{}", command->name, key.name);
      if (key.any_text) with_files.push_back(name);
      if (!key.choices.empty()) text += fmt::format("    {}) {} ;;\n", name, does(key.choices));
    }
  }
  return text + fmt::format("    {}) {} ;;\n", fmt::join(with_files, "|"), files);
}

std::string bash() {
  std::string names, words;
  for (const Command* command : commands()) {
    names += fmt::format("{} ", command->name);
    std::vector<std::string> own = words_of(*command);
    for (const HelpPart& key : keys_of(*command)) own.push_back(key.name + "=");
    words += fmt::format("    {}) words='{}'{} ;;\n", command->name, fmt::join(own, " "),
                         takes_files(*command) ? " files=yes" : "");
  }
  const std::string values = cases_of_values(
      [](const auto& choices) { return fmt::format("words='{}'", fmt::join(choices, " ")); }, "files=yes");
  // Readline takes what follows = for a word of its own, unless COMP_WORDBREAKS is changed.
  return fmt::format(R"(# bash completion of zoetrope: source <(zoetrope completion bash)
_zoetrope() {{
  local line=${{COMP_LINE:0:COMP_POINT}}
  local word=${{line##*[[:space:]]}}
  local command words='' files='' key value before='' file
  local -a names=()
  COMPREPLY=()
  read -r _ command _ <<<"$line"
  if [[ $line =~ ^[[:space:]]*[^[:space:]]+[[:space:]]+[^[:space:]]*$ ]]; then
    mapfile -t COMPREPLY < <(compgen -W '{}--help --version' -- "$word")
  elif [[ $word == *=* ]]; then
    key=${{word%%=*}} value=${{word#*=}}
    [[ $COMP_WORDBREAKS == *=* ]] || before="$key="
    case $command.$key in
{}    esac
    if [[ -n $words ]]; then
      mapfile -t COMPREPLY < <(compgen -P "$before" -W "$words" -- "$value")
    elif [[ -n $files ]]; then
      [[ -n $before ]] || compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -P "$before" -f -- "$value")
    fi
  else
    case $command in
{}    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
    [[ -z $files ]] || mapfile -t names < <(
      compgen -d -- "$word"
      for file in {}; do compgen -f -X "!*.$file" -- "$word"; done
    )
    if ((${{#COMPREPLY[@]}} == 0)); then
      compopt -o filenames 2>/dev/null
      COMPREPLY=("${{names[@]}}")
      return
    fi
    # With -o filenames Readline would quote the = of keys: names next to them are quoted here.
    for file in "${{names[@]}}"; do
      [[ ! -d $file ]] || file+=/
      printf -v file %q "$file"
      COMPREPLY+=("$file")
    done
    [[ ${{COMPREPLY[0]}} != *= ]] || compopt -o nospace 2>/dev/null
  fi
}}
complete -F _zoetrope zoetrope
)",
                     names, values, words, fmt::join(file_endings(), " "));
}

// A word of _describe: "name:what it is", with colons in the name escaped (there are none).
std::string described(const std::string& name, const std::string& text) { return quoted(name + ":" + text); }

std::string zsh() {
  std::string names, keys;
  for (const Command* command : commands()) {
    names += fmt::format("    {}\n", described(command->name, command->summary));
    std::string own;
    for (const HelpPart& key : keys_of(*command)) own += fmt::format("      {}\n", described(key.name, key.text));
    keys += fmt::format("    {}) own=({}) files={} keys=(\n{}    ) ;;\n", command->name,
                        fmt::join(words_of(*command), " "), takes_files(*command) ? "yes" : "", own);
  }
  const std::string values = cases_of_values(
      [](const auto& choices) { return fmt::format("compadd -- {}", fmt::join(choices, " ")); }, "_files");
  return fmt::format(R"(#compdef zoetrope
# zsh completion of zoetrope: in a folder of $fpath as _zoetrope, or source <(zoetrope completion zsh)
_zoetrope() {{
  local -a commands keys own
  local files
  commands=(
{})
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2] key=${{words[CURRENT]%%=*}}
  if compset -P '*='; then
    case $command.$key in
{}    esac
    return
  fi
  case $command in
{}  esac
  (( $#own )) && compadd -- $own
  (( $#keys )) && _describe -t keys key keys -S =
  [[ -n $files ]] && _files -g '*.({})'
}}
if [[ $funcstack[1] == _zoetrope ]]; then
  _zoetrope "$@"
elif (( $+functions[compdef] )); then
  compdef _zoetrope zoetrope
fi
)",
                     names, values, keys, fmt::join(file_endings(), "|"));
}

std::string fish() {
  std::string text = "# fish completion of zoetrope: zoetrope completion fish | source\n";
  for (const Command* command : commands()) {
    text += fmt::format("complete -c zoetrope -n __fish_use_subcommand -f -a {} -d {}\n", command->name,
                        fish_quoted(command->summary));
  }
  for (const Command* command : commands()) {
    // Where the command is still being typed there is no second word.
    const std::string after = fmt::format(
        "complete -c zoetrope -n 'test (count (commandline -opc)) -gt 1; and test (commandline -opc)[2] = {}'",
        command->name);
    if (const std::vector<std::string> own = words_of(*command); !own.empty())
      text += fmt::format("{} -f -a {}\n", after, fish_quoted(fmt::format("{}", fmt::join(own, " "))));
    for (const HelpPart& key : keys_of(*command)) {
      std::string words = key.name + "=";
      for (const std::string& choice : key.choices) words += fmt::format(" {}={}", key.name, choice);
      text += fmt::format("{} -a {} -d {}\n", after, fish_quoted(words), fish_quoted(key.text));
    }
  }
  return text;
}

}  // namespace

std::string completion_script(const std::string& shell) {
  if (shell == "bash") return bash();
  if (shell == "zsh") return zsh();
  if (shell == "fish") return fish();
  fail("completion: unknown shell '{}'; use bash, zsh or fish", shell);
}

}  // namespace zoetrope::cli
