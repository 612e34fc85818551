// zoetrope: the command line. Finds the subcommand, runs it here or as one rank of an MPI job, and turns errors into
// one sentence on standard error and an exit code: 1 for errors, 2 for wrong usage, 130 for Ctrl-C.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "zoetrope/version.h"

#include "cli/command.h"
#include "cli/interrupt.h"

namespace zoetrope::cli {
namespace {

constexpr const Command* kCommands[] = {&kAttention, &kBench, &kCalibrate,  &kGenerate,
                                        &kInspect,   &kPlan,  &kSynthesize, &kTune};

int run_here_or_on_ranks(const Command& command, const std::vector<std::string>& arguments) {
  if (!comm::launched_by_mpi()) return command.run(arguments, nullptr);
  comm::RankOptions options;
  if (command.timeout != nullptr) options.timeout_seconds = command.timeout(arguments);
  return comm::run_mpi([&](comm::Communicator& world) { command.run(arguments, &world); }, options);
}

int run_command(const Command& command, const std::vector<std::string>& arguments) {
  int code = 1;
  try {
    code = run_here_or_on_ranks(command, arguments);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "zoetrope: out of memory\n");
  } catch (const std::exception& error) {  // Error, or what the system refuses (a name too long, no more threads)
    fmt::print(stderr, "zoetrope: {}\n", error.what());
  }
  return code != 0 && interrupted() ? 130 : code;
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
