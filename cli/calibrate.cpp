// zoetrope calibrate: measures this machine, or the hosts of an MPI job, and writes the hardware profile that later
// plans use. Prints each figure when it is measured; bench/ does the measuring.
#include "bench/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/print.h"
#include "base/words.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "planner/calibrated.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  bench::CalibrateSettings settings;
  std::string output;
};

OptionSet describe(Options& o) {
  OptionSet set = describe(o.settings);
  set.text("output", o.output,
           "the file to write; unset: zoetrope/hardware.yml in the user's cache folder, where runs look for it, under "
           "mpirun hardware-HOSTSxRANKS.yml in the same folder");
  return set;
}

std::string help() {
  Options options;
  return fmt::format(
      "Keys, as key=value:\n{}\n"
      "Plans and `attention=auto` use the result, unless hardware= names another profile.\n"
      "Examples:\n  zoetrope calibrate\n  mpirun -n 4 zoetrope calibrate threads=1 output=cluster.yml\n",
      describe(options).help());
}

comm::RankOptions deadline(const std::vector<std::string>& words) {
  Options options;
  OptionSet set = describe(options);
  for (const std::string& word : words) set.set_argument(word);
  return {.timeout_seconds = options.settings.comm_timeout};
}

// The folder of the user's cache is created; one that the user named must exist.
fs::path output_of(const Options& options, const bench::CalibrationJob& job) {
  if (!options.output.empty()) return options.output;
  const fs::path path = job.world == nullptr ? planner::calibrated_profile_path()
                                             : planner::calibrated_profile_path(job.hosts, job.ranks_per_host);
  if (path.empty()) {
    fail("the profile has no folder: neither XDG_CACHE_HOME nor HOME is set; name a file with output=FILE");
  }
  make_parent_folders(path);
  return path;
}

void print_finding(const bench::Finding& finding) {
  show_progress("");
  const std::string spread = finding.spread < 0 ? "" : fmt::format("± {:.1f} %", 100 * finding.spread);
  print("{:<26} {:>16} {:>10}  {}\n", finding.figure, finding.value, spread, finding.how);
  std::fflush(stdout);
}

void print_checks(const std::vector<bench::SelfCheck>& checks) {
  if (checks.empty()) return;
  print("\n{:<58} {:>10} {:>10} {:>8} {:>10} {:>8}\n", "a layer's attention, as a check", "predicted", "measured",
        "error", "spread", "speed");
  for (const bench::SelfCheck& check : checks) {
    print("{:<58} {:>7.1f} ms {:>7.1f} ms {:>+6.1f} % {:>10} {:>6.0f} %\n", check.configuration, check.predicted * 1e3,
          check.measured * 1e3, 100 * (check.predicted / check.measured - 1),
          fmt::format("± {:.1f} %", 100 * check.spread), 100 * check.speed);
  }
  print("speed: of the cores during the check, as a share of the profile's peak; the prediction is for that speed\n");
}

int run(const std::vector<std::string>& words, comm::Communicator* world) {
  stop_at_safe_points();
  Options options;
  OptionSet set = describe(options);
  for (const std::string& word : words) set.set_argument(word);
  const bench::CalibrationJob job = bench::calibration_job(options.settings, world);
  const bool leads = world == nullptr || world->rank() == 0;
  std::optional<AtomicFile> file;
  if (leads) {
    file.emplace(output_of(options, job));  // so that an unwritable file is an error early
    print("{}, {} on each, {} per rank\n{:<26} {:>16} {:>10}\n", counted(job.hosts, "host"),
          counted(job.ranks_per_host, "rank"), counted(job.threads, "thread"), "figure", "", "spread");
  }
  const bench::Calibrated result = bench::calibrate(job, show_progress, print_finding);
  if (!leads) return 0;
  print_checks(result.checks);
  const std::string text = planner::hardware_yaml(result.profile, result.remarks);
  file->write(text.data(), text.size());
  file->commit();
  print("\nwritten to {}\n", file->path().string());
  return 0;
}

}  // namespace

const Command kCalibrate = {"calibrate", "[key=value …]", "Measure this machine, or the hosts of an MPI job, for plans",
                            help,        deadline,        run};

}  // namespace zoetrope::cli
