#include "pipeline/profile_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "comm/launcher.h"
#include "kernels/cpu_features.h"
#include "pipeline/admission.h"
#include "pipeline/config_folder.h"
#include "planner/calibrated.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAnyCpu = "cpu";  // of configs/hardware/: figures of a core of no CPU in particular
constexpr const char* kMeasures = "`zoetrope calibrate` measures";

// How many ranks a host has of them is what a host's figures are shared out to; published devices are ranks as they
// are.
planner::HardwareProfile shared_out(const planner::HardwareProfile& profile, const Job& job) {
  const planner::HardwareProfile shared = planner::for_ranks(profile, job.ranks_per_host, job.threads);
  return planner::with_devices(shared, job.hosts * job.ranks_per_host);
}

ProfileChoice named(const std::string& hardware, const Job& job) {
  ProfileChoice choice;
  const planner::HardwareProfile profile = planner::find_hardware(hardware, config_folder() / "hardware");
  choice.origin = fmt::format("profile '{}'", profile.name);
  const bool of_hosts = profile.calibration || profile.name == kAnyCpu;
  choice.hardware = of_hosts ? shared_out(profile, job) : planner::with_devices(profile, job.ranks);
  for (const std::string& reason :
       planner::staleness(profile, {kernels::cpu_model(), job.hosts, job.ranks, job.threads}))
    choice.notes.push_back(fmt::format("hardware={}: {}", hardware, reason));
  return choice;
}

// Where the user's calibration of such a job would stand, the nearest first; empty paths left out.
std::vector<fs::path> calibrated_files(const Job& job) {
  std::vector<fs::path> files;
  if (job.processes) files.push_back(planner::calibrated_profile_path(job.hosts, job.ranks_per_host));
  if (job.hosts == 1) files.push_back(planner::calibrated_profile_path());
  files.erase(std::remove_if(files.begin(), files.end(), [](const fs::path& file) { return file.empty(); }),
              files.end());
  return files;
}

// The first of them that is there, and speaks of this machine or says in notes why not.
std::optional<ProfileChoice> calibrated(const Job& job, std::vector<std::string>& notes) {
  for (const fs::path& file : calibrated_files(job)) {
    std::error_code ignored;
    if (!fs::exists(file, ignored)) continue;
    try {
      const planner::HardwareProfile profile = planner::load_hardware(file);
      ProfileChoice choice;
      choice.hardware = shared_out(profile, job);
      choice.origin = fmt::format("profile {}{}", file.string(),
                                  profile.calibration ? fmt::format(", measured {}", profile.calibration->date) : "");
      for (const std::string& reason :
           planner::staleness(profile, {kernels::cpu_model(), job.hosts, job.ranks, job.threads}))
        choice.notes.push_back(fmt::format("warning: the calibration is used, but {}; {} anew", reason, kMeasures));
      if (job.processes && file == planner::calibrated_profile_path()) {
        choice.notes.push_back(fmt::format(
            "warning: the calibration is used, but its ranks were threads of one process; `mpirun -n {} zoetrope "
            "calibrate` measures between processes",
            job.ranks));
      }
      return choice;
    } catch (const Error& error) {
      // It may be of another version, and nothing depends on it but speed.
      notes.push_back(fmt::format("warning: the calibration cannot be used: {}", error.what()));
    }
  }
  return std::nullopt;
}

}  // namespace

Job job_of(comm::Communicator& world, std::optional<int64_t> threads) {
  Job job = job_of(world.size(), threads);
  if (!job.processes || world.size() == 1) return job;
  std::map<std::string, int> ranks;
  for (const std::string& host : hosts_of_ranks(world)) ++ranks[host];
  job.hosts = static_cast<int>(ranks.size());
  job.ranks_per_host = 0;
  for (const auto& [host, count] : ranks) job.ranks_per_host = std::max(job.ranks_per_host, count);
  return job;
}

Job job_of(int ranks, std::optional<int64_t> threads) {
  Job job;
  job.ranks = job.ranks_per_host = ranks;
  job.processes = comm::launched_by_mpi();
  job.threads = std::max(1, comm::process_threads(threads) / job.ranks_here());
  return job;
}

ProfileChoice choose_profile(const std::string& hardware, const Job& job) {
  if (!hardware.empty()) return named(hardware, job);
  std::vector<std::string> notes;
  if (std::optional<ProfileChoice> found = calibrated(job, notes)) {
    found->notes.insert(found->notes.begin(), notes.begin(), notes.end());
    return *std::move(found);
  }
  ProfileChoice choice = named(kAnyCpu, job);
  choice.notes = std::move(notes);
  choice.notes.push_back(
      fmt::format("its figures are those of CPUs in general, as nobody calibrated this machine; {} it", kMeasures));
  return choice;
}

}  // namespace zoetrope::pipeline
