// zoetrope: the command line. Finds the subcommand, runs it here or as one rank of an MPI job, and turns errors into
// one sentence on standard error and an exit code: 1 for errors, 2 for wrong usage, 130 for Ctrl-C.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "zoetrope/error.h"
#include "zoetrope/version.h"

#include "cli/command.h"
#include "cli/interrupt.h"

namespace zoetrope::cli {
namespace {

constexpr const Command* kCommands[] = {&kGenerate, &kInspect};

int run_command(const Command& command, const std::vector<std::string>& arguments) {
  if (comm::launched_by_mpi()) {
    comm::RankOptions options;
    if (command.timeout != nullptr) options.timeout_seconds = command.timeout(arguments);
    return comm::run_mpi([&](comm::Communicator& world) { command.run(arguments, &world); }, options);
  }
  try {
    return command.run(arguments, nullptr);
  } catch (const Error& error) {
    fmt::print(stderr, "zoetrope: {}\n", error.what());
    return interrupted() ? 130 : 1;
  }
}

int run(int argc, char** argv) {
  CLI::App app("Text to video with the Wan diffusion models, over as many devices as there are.", "zoetrope");
  app.set_version_flag("--version", fmt::format("zoetrope {}", version()));
  app.require_subcommand(0, 1);
  std::vector<std::vector<std::string>> arguments(std::size(kCommands));
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    const Command& command = *kCommands[i];
    CLI::App* sub = app.add_subcommand(command.name, command.summary);
    sub->add_option("arguments", arguments[i], command.synopsis);
    sub->footer(command.help());
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    if (app.got_subcommand(kCommands[i]->name)) return run_command(*kCommands[i], arguments[i]);
  }
  fmt::print("{}", app.help());
  return 2;
}

}  // namespace
}  // namespace zoetrope::cli

int main(int argc, char** argv) { return zoetrope::cli::run(argc, argv); }
