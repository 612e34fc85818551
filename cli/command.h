// The description of a subcommand for main. One file per subcommand.
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
  // How long the ranks of an MPI job wait for each other, by these arguments, needed before they can communicate.
  // Throws where the arguments are wrong, which run() reports; then the answer to no arguments counts.
  comm::RankOptions (*deadline)(const std::vector<std::string>& arguments);
  // Runs with the arguments after the name. `world` is this process' rank of an MPI job, or null. Throws Error.
  int (*run)(const std::vector<std::string>& arguments, comm::Communicator* world);
  bool takes_keys_of_generate = false;  // next to those that help() describes
};

extern const Command kAttention;
extern const Command kBench;
extern const Command kCalibrate;
extern const Command kCompletion;
extern const Command kConvert;
extern const Command kGenerate;
extern const Command kInspect;
extern const Command kInt8;
extern const Command kMan;
extern const Command kPlan;
extern const Command kRun;
extern const Command kServe;
extern const Command kSynthesize;
extern const Command kTune;
extern const Command kVerify;

}  // namespace zoetrope::cli
