#include <fmt/format.h>

#include "zoetrope/version.h"

#include "cli/help_text.h"

namespace zoetrope::cli {
namespace {

// Text as roff takes it: every character means itself.
std::string escaped(std::string_view text) {
  std::string roff;
  for (const char c : text) {
    switch (c) {
      case '\\':
        roff += "\\(rs";
        break;
      case '-':
        roff += "\\-";
        break;
      case '`':
        roff += "\\(ga";
        break;
      case '\'':
        roff += "\\(aq";
        break;
      case '^':
        roff += "\\(ha";
        break;
      case '~':
        roff += "\\(ti";
        break;
      case '"':
        roff += "\\(dq";
        break;
      default:
        roff += c;
    }
  }
  return roff.starts_with('.') ? "\\&" + roff : roff;
}

std::string example(const std::string& command) {
  std::string lines;
  for (size_t begin = 0; begin < command.size();) {
    const size_t end = std::min(command.find('\n', begin), command.size());
    lines += escaped(command.substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  return fmt::format(".PP\n.nf\n.RS 4\n{}.RE\n.fi\n", lines);
}

std::string heading(const std::string& name) {
  return fmt::format(".TH {} 1 \"\" \"zoetrope {}\" \"User Commands\"\n", escaped(name), version());
}

std::string of_command(const Command& command) {
  std::string text = heading(fmt::format("zoetrope-{}", command.name));
  text += fmt::format(".SH NAME\nzoetrope\\-{} \\- {}\n", command.name, escaped(command.summary));
  text += fmt::format(".SH SYNOPSIS\n.B zoetrope {}\n{}\n", command.name, escaped(command.synopsis));
  text += ".SH DESCRIPTION\n.B \\-\\-key value\nand\n.B \\-\\-key=value\nstand for\n.BR key=value .\n";
  for (const HelpPart& part : parts_of_help(command.help())) {
    switch (part.kind) {
      case HelpPart::Kind::kText:
        text += fmt::format(".PP\n{}\n", escaped(part.text));
        break;
      case HelpPart::Kind::kKey:
        text += fmt::format(".TP\n.B {}\n{}\n", escaped(part.name), escaped(part.text));
        break;
      case HelpPart::Kind::kExample:
        text += example(part.text);
        break;
    }
  }
  return text;
}

std::string of_program() {
  std::string text = heading("zoetrope");
  text +=
      ".SH NAME\nzoetrope \\- turn a prompt into a video with the Wan diffusion models\n"
      ".SH SYNOPSIS\n.B zoetrope\n.I command\n[\\fIword\\fR \\&...]\n.br\n.B zoetrope\n.I command\n.B \\-\\-help\n"
      ".SH DESCRIPTION\nEverything is\n.BR key=value ,\nin a YAML file or on the command line.\n.SH COMMANDS\n";
  for (const Command* command : commands()) {
    text += fmt::format(".TP\n.BR zoetrope\\-{} (1)\n{}\n", command->name, escaped(command->summary));
  }
  return text;
}

constexpr const char* kEnd =
    ".SH EXIT STATUS\n0: done. 1: an error, which one sentence on standard error explains. 2: wrong usage. 128 and the "
    "number of a\nsignal: ended by it (130 by Ctrl\\-C).\n"
    ".SH FILES\n.TP\n.I share/zoetrope/configs\nsettings of the published models, and profiles of hardware\n"
    ".TP\n.I \\(ti/.cache/zoetrope\nwhat was measured on this machine (or\n.BR $XDG_CACHE_HOME/zoetrope )\n"
    ".SH SEE ALSO\n";

}  // namespace

std::string man_page(const Command* command) {
  std::string others = command == nullptr ? "" : ".BR zoetrope (1)";
  for (const Command* other : commands()) {
    if (other == command) continue;
    others += fmt::format("{}.BR zoetrope\\-{} (1)", others.empty() ? "" : ",\n", other->name);
  }
  return (command == nullptr ? of_program() : of_command(*command)) + kEnd + others + "\n";
}

}  // namespace zoetrope::cli
