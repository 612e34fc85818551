#include <fmt/format.h>

#include "zoetrope/version.h"

#include "base/words.h"
#include "cli/help_text.h"

namespace zoetrope::cli {
namespace {

using Kind = HelpPart::Kind;

constexpr std::string_view kParagraph = ".PP\n";

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
  for (const std::string_view line : split_terminated(command, '\n')) lines += escaped(line) + "\n";
  return fmt::format("{}.nf\n.RS 4\n{}.RE\n.fi\n", kParagraph, lines);
}

std::string heading(const std::string& name) {
  return fmt::format(".TH {} 1 \"{}\" \"zoetrope {}\" \"User Commands\"\n", escaped(name), ZOETROPE_DATE, version());
}

// The first paragraph below a heading is none of its own for roff.
std::string section_of(const std::string& name, std::string body) {
  if (body.starts_with(kParagraph)) body.erase(0, kParagraph.size());
  return body.empty() ? "" : fmt::format(".SH {}\n{}", name, body);
}

// The bodies of the sections that the text of --help is sorted into.
struct Sections {
  std::string description, keys, notes, examples;
};

std::string of_command(const Command& command) {
  std::string text = heading(fmt::format("zoetrope-{}", command.name));
  text += fmt::format(".SH NAME\nzoetrope\\-{} \\- {}\n", command.name, escaped(command.summary));
  text += fmt::format(".SH SYNOPSIS\n.B zoetrope {}\n{}\n", command.name, escaped(command.synopsis));
  Sections sections;
  const std::vector<HelpPart> parts = parts_of_help(command.help());
  std::string* section = &sections.description;
  for (size_t i = 0; i < parts.size(); ++i) {
    const HelpPart& part = parts[i];
    switch (part.kind) {
      case Kind::kText:  // a heading of keys, where one follows
        if (i + 1 < parts.size() && parts[i + 1].kind == Kind::kKey) section = &sections.keys;
        else if (section == &sections.keys) section = &sections.notes;
        *section += fmt::format("{}{}\n", kParagraph, escaped(part.text));
        break;
      case Kind::kKey:
      case Kind::kTerm:
        *section += fmt::format(".TP\n.B {}\n{}\n", escaped(part.name), escaped(part.text));
        break;
      case Kind::kExample:
        sections.examples += example(part.text);
        break;
    }
  }
  text += fmt::format(".SH DESCRIPTION\n{}.\n{}", escaped(command.summary), sections.description);
  if (!sections.keys.empty()) {
    text += fmt::format(".SH KEYS\n.B \\-\\-key value\nand\n.B \\-\\-key=value\nstand for\n.BR key=value .\n{}",
                        sections.keys);
  }
  return text + section_of("NOTES", sections.notes) + section_of("EXAMPLES", sections.examples);
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
    ".SH EXIT STATUS\n0: done. 1: an error, which one sentence on standard error explains. 2: no such command.\n"
    "128 and the number of a signal: ended by it (130 by Ctrl\\-C).\n"
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
