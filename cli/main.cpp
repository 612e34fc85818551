// zoetrope: the command line. Finds the subcommand, runs it here or as one rank of an MPI job, and turns errors into
// one sentence on standard error and an exit code: 1 for errors, 2 for wrong usage, 128 + number for signals (130 for
// Ctrl-C).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "zoetrope/version.h"

#include "base/error.h"
#include "base/print.h"
#include "base/run_files.h"
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
    const RunFiles reads;
    const int answer = run_here_or_on_ranks(command, arguments);
    finish_output();
    code = answer;
  } catch (const std::bad_alloc&) {
    print_error("zoetrope: out of memory\n");
  } catch (const std::exception& error) {  // Error, or what the system refuses (a name too long, no more threads)
    print_error("zoetrope: {}\n", printable(error.what()));
  }
  return code != 0 && interrupted() ? 128 + interrupting_signal() : code;
}

// `code`, unless the answer could not be printed.
int finished(int code) {
  try {
    finish_output();
    return code;
  } catch (const Error& error) {
    print_error("zoetrope: {}\n", error.what());
    return 1;
  }
}

int run(int argc, char** argv) {
  take_standard_descriptors();
  catch_signals();
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
    std::ostringstream out, err;
    const int code = app.exit(error, out, err);
    print_text(out.str());
    print_error_text(err.str());
    return code == 0 ? finished(0) : 2;
  }
  for (size_t i = 0; i < std::size(kCommands); ++i) {
    if (app.got_subcommand(kCommands[i]->name)) return run_command(*kCommands[i], arguments[i]);
  }
  print_text(app.help());
  return finished(2);
}

}  // namespace
}  // namespace zoetrope::cli

int main(int argc, char** argv) { return zoetrope::cli::run(argc, argv); }
