// `zoetrope calibrate`: measures the hardware profile of this machine, or of the hosts of an MPI job, with every rank
// busy as in a run: ranks that share cores measure their part of them. Prints nothing and writes no file; results are
// passed to functions of the caller as they are found.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zoetrope/communicator.h"

#include "base/options.h"
#include "bench/cases.h"
#include "planner/hardware.h"

namespace zoetrope::bench {

struct CalibrateSettings {
  std::string dtype = "all";
  std::optional<int64_t> ranks;    // each a thread; unset: at most 4, and at most the cores; under mpirun its ranks
  std::optional<int64_t> threads;  // per rank; unset: the cores, shared
  double seconds = 0.06;
  double comm_timeout = 300;
};
OptionSet describe(CalibrateSettings& settings);

// A line of the table.
struct Finding {
  std::string figure;  // "bf16.peak", as the profile names it
  std::string value;   // with its unit
  double spread = -1;  // half the range of the repeats over their median; negative: not repeated
  std::string how;
};
using Found = std::function<void(const Finding&)>;

// A layer's attention over all ranks, predicted from the profile and measured.
struct SelfCheck {
  std::string configuration;
  double predicted = 0, measured = 0;  // seconds
  double spread = 0;                   // of the measured
  // The peak right before and after, relative to the profile's: clock rates drift, and others use the machine. The
  // prediction is for this speed.
  double speed = 1;
};

struct Calibrated {
  planner::HardwareProfile profile;
  std::vector<std::pair<std::string, std::string>> remarks;  // figure and how it was measured, for the file
  std::vector<SelfCheck> checks;
};

// What will be measured.
struct CalibrationJob {
  comm::Communicator* world = nullptr;  // null: ranks are threads of this process
  int hosts = 1, ranks_per_host = 1, threads = 1;
  int cores = 1;       // that the ranks of a host may use together
  int rank_cores = 1;  // that each of them may use: fewer where they are bound
  std::vector<std::string> dtypes;
  double seconds = 0, comm_timeout = 0;
  int ranks() const { return hosts * ranks_per_host; }
};

// Collective over `world`. Throws Error where settings contradict the job, and where hosts have different numbers of
// ranks.
CalibrationJob calibration_job(const CalibrateSettings& settings, comm::Communicator* world);

// Collective over the job's world. `found` is called on rank 0 only, which has the result.
Calibrated calibrate(const CalibrationJob& job, const Progress& progress, const Found& found);

}  // namespace zoetrope::bench
