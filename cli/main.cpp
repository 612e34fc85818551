// zoetrope: the command line. Finds the subcommand, runs it in this process or as one rank of an MPI job, and reports
// errors as one sentence on standard error and an exit code: 1 for errors, 2 for wrong usage, 128 + number for signals
// (130 for Ctrl-C).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "zoetrope/mpi.h"
#include "zoetrope/version.h"

#include "base/error.h"
#include "base/print.h"
#include "base/run_files.h"
#include "cli/command.h"
#include "cli/help_text.h"
#include "cli/interrupt.h"

namespace zoetrope::cli {
namespace {

// `--key value` and `--key=value` as key=value, with _ for each - of the key; other words as they are. Throws Error for
// a key without a value.
std::vector<std::string> settings_of(const std::vector<std::string>& words) {
  std::vector<std::string> settings;
  for (auto word = words.begin(); word != words.end(); ++word) {
    if (!word->starts_with("--")) {
      settings.push_back(*word);
      continue;
    }
    const size_t equals = std::min(word->find('='), word->size());
    std::string key = word->substr(2, equals - 2);
    std::replace(key.begin(), key.end(), '-', '_');
    if (equals < word->size()) {
      settings.push_back(key + word->substr(equals));
      continue;
    }
    if (word + 1 == words.end() || word[1].starts_with("--"))
      fail("command line: {} has no value; write {} VALUE or {}=VALUE", *word, *word, key);
    settings.push_back(fmt::format("{}={}", key, *++word));
  }
  return settings;
}

comm::RankOptions rank_options(const Command& command, const std::vector<std::string>& arguments) {
  if (command.deadline == nullptr) return {};
  try {
    return command.deadline(arguments);
  } catch (const std::exception&) {
    return command.deadline({});
  }
}

int run_here_or_on_ranks(const Command& command, const std::vector<std::string>& arguments) {
  if (!comm::launched_by_mpi()) return command.run(arguments, nullptr);
  return comm::run_mpi([&](comm::Communicator& world) { command.run(arguments, &world); },
                       rank_options(command, arguments));
}

int run_command(const Command& command, const std::vector<std::string>& words) {
  int code = 1;
  try {
    const RunFiles reads;
    const int answer = run_here_or_on_ranks(command, settings_of(words));
    finish_output();
    code = answer;
  } catch (const std::bad_alloc&) {
    print_error("zoetrope: out of memory\n");
  } catch (const std::exception& error) {  // Error, or what the system refuses (a name too long, no more threads)
    print_error("zoetrope: {}\n", printable(error.what()));
  }
  return code != 0 && interrupted() ? 128 + interrupting_signal() : code;
}

// `code`, or 1 if the output could not be written.
int finished(int code) {
  try {
    finish_output();
    return code;
  } catch (const Error& error) {
    print_error("zoetrope: {}\n", error.what());
    return 1;
  }
}

std::string help() {
  std::string text =
      "Text to video with the Wan diffusion models, on one or many ranks.\n\n"
      "Usage: zoetrope COMMAND [WORD…]\n       zoetrope COMMAND --help\n       zoetrope --version\n\nCommands:\n";
  for (const Command* command : commands()) text += fmt::format("  {:<11} {}\n", command->name, command->summary);
  return text;
}

std::string help_of(const Command& command) {
  return fmt::format("{}\n\nUsage: zoetrope {} {}\n--key value and --key=value stand for key=value.\n\n{}",
                     command.summary, command.name, command.synopsis, command.help());
}

int refuse_command(const std::string& word) {
  std::vector<std::string> names;
  for (const Command* command : commands()) names.emplace_back(command->name);
  const std::string near = nearest_name(word, names);
  print_error("zoetrope: there is no command '{}'{}; there are: {}\n", printable(word),
              near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near), fmt::join(names, ", "));
  return 2;
}

int run(const std::vector<std::string>& words) {
  take_standard_descriptors();
  catch_signals();
  const auto asks_for_help = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (words.empty() || asks_for_help(words[0])) {
    print_text(help());
    return finished(words.empty() ? 2 : 0);
  }
  if (words[0] == "--version") {
    print("zoetrope {}\n", version());
    return finished(0);
  }
  const auto named = [&](const Command* command) { return words[0] == command->name; };
  const auto command = std::find_if(commands().begin(), commands().end(), named);
  if (command == commands().end()) return refuse_command(words[0]);
  const std::vector<std::string> rest(words.begin() + 1, words.end());
  if (std::any_of(rest.begin(), rest.end(), asks_for_help)) {
    print_text(help_of(**command));
    return finished(0);
  }
  return run_command(**command, rest);
}

}  // namespace

const std::vector<const Command*>& commands() {
  static const std::vector<const Command*> all{&kAttention, &kBench,   &kCalibrate,  &kCompletion, &kConvert,
                                               &kGenerate,  &kInspect, &kInt8,       &kMan,        &kPlan,
                                               &kRun,       &kServe,   &kSynthesize, &kTune,       &kVerify};
  return all;
}

}  // namespace zoetrope::cli

int main(int argc, char** argv) { return zoetrope::cli::run({argv + 1, argv + argc}); }
