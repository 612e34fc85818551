// What the subcommands share: how each is described to main, and where its lines go. One file a subcommand.
#pragma once

#include <string>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/error.h"

#include "base/options.h"

namespace zoetrope::cli {

struct Command {
  const char* name;
  const char* synopsis;   // after the name, as --help shows it
  const char* summary;    // one line
  std::string (*help)();  // the keys it takes
  // comm_timeout as these words set it, wanted before the ranks of an MPI job can talk; the default where they are
  // wrong (run() then says so).
  double (*timeout)(const std::vector<std::string>& arguments);
  // Runs with the words after the name. `world` is this process' rank of an MPI job, or null. Throws Error.
  int (*run)(const std::vector<std::string>& arguments, comm::Communicator* world);
};

// What `function` returns; its errors say of each key=value that they name which file or command line gave it.
template <typename Function>
auto with_origins(const OptionSet& set, Function&& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw Error(set.with_origins(error.what()));
  }
}

extern const Command kAttention;
extern const Command kBench;
extern const Command kCalibrate;
extern const Command kGenerate;
extern const Command kInspect;
extern const Command kPlan;
extern const Command kSynthesize;
extern const Command kTune;

}  // namespace zoetrope::cli
