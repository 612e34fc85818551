#include "pipeline/planning/profile_choice.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <tuple>

#include "base/available_cores.h"
#include "base/error.h"
#include "base/index_range.h"
#include "base/input_file.h"
#include "comm/launcher.h"
#include "kernels/cpu_features.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/planning/admission.h"
#include "pipeline/planning/measured_profile.h"
#include "pipeline/planning/memory_here.h"
#include "pipeline/ranks/hosts.h"
#include "planner/available.h"
#include "planner/calibrated.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAnyCpu = "cpu";  // of configs/hardware/: figures of a core of no CPU in particular
constexpr const char* kMeasures = "`zoetrope calibrate` measures";

fs::path hardware_folder(const fs::path& configs) { return configs / "hardware"; }

std::optional<planner::HardwareProfile> any_cpu() {
  const std::optional<fs::path> configs = find_config_folder();
  if (!configs) return std::nullopt;
  const std::vector<std::string> names = planner::hardware_names(hardware_folder(*configs));
  if (std::find(names.begin(), names.end(), kAnyCpu) == names.end()) return std::nullopt;
  return find_profile(kAnyCpu);
}

// How many ranks a host has of them is what a host's figures are divided by; published devices are ranks as they
// are.
planner::HardwareProfile divided_among_ranks(const planner::HardwareProfile& profile, const Job& job) {
  const planner::HardwareProfile shared = planner::for_ranks(profile, job.ranks_per_host, job.threads, job.cores);
  return planner::with_devices(shared, job.hosts * job.ranks_per_host);
}

// Below, the run is over in less than a few times what measuring takes. At the peak of a CPU in general: on a slower
// machine the run is longer, and is predicted with figures that nobody measured.
bool worth_measuring(const ProfileUse& what, const planner::HardwareProfile& any_cpu) {
  constexpr double kTimes = 2;
  const double peak = std::max(any_cpu.bf16.peak, any_cpu.float32.peak) * available_threads();
  return what.flop >= kTimes * machine::kFirstUseSeconds * peak;
}

// What lies between hosts, of a profile that knows none of them.
void use_links(ProfileChoice& choice, const Job& job) {
  if (job.hosts == 1) return;
  if (!job.links) {
    choice.notes.push_back(fmt::format("warning: what lies between the {} hosts was not measured but is that of '{}'",
                                       job.hosts, kAnyCpu));
    return;
  }
  planner::HardwareProfile& hardware = choice.hardware;
  for (planner::LinkLevel& level : hardware.links) {
    if (level.name != planner::kClusterLevel) continue;
    level.bandwidth = job.links->bandwidth;
    level.latency = job.links->latency;
  }
  std::erase_if(hardware.assumed, [](const planner::HardwareProfile::Assumption& assumed) {
    const std::string level = fmt::format("links.{}.", planner::kClusterLevel);
    return assumed.figure == level + "bandwidth" || assumed.figure == level + "latency";
  });
  choice.notes.push_back(fmt::format("between the {} hosts {:.3g} GB/s each way and {:.0f} µs were measured now",
                                     job.hosts, job.links->bandwidth * 1e-9, job.links->latency * 1e6));
}

// What was measured on first use, now or before.
std::optional<ProfileChoice> measured(const planner::HardwareProfile& any_cpu, const Job& job, const ProfileUse& what,
                                      std::vector<std::string>& notes) {
  machine::FirstUse use;
  use.worth_measuring = worth_measuring(what, any_cpu);
  use.heartbeat = what.heartbeat;
  std::optional<machine::KnownMachine> machine = machine::known_machine(use, notes);
  if (!machine) return std::nullopt;
  ProfileChoice choice;
  choice.hardware = divided_among_ranks(measured_profile(any_cpu, *machine), job);
  choice.origin = fmt::format("figures of this machine, measured on first use {}; {} more", machine->date, kMeasures);
  choice.notes = std::move(machine->notes);
  choice.first_use = true;
  use_links(choice, job);
  return choice;
}

// Only the machine itself says how much memory it has: a profile's figure is of another day or machine.
void set_memory(planner::HardwareProfile& hardware, const Job& job, std::optional<planner::Bytes> available) {
  if (!available)
    available = planner::tightest(
        planner::memory_limits(query_here(job.processes ? job.ranks_per_host : 1, job.threads * job.ranks_here())));
  if (available) hardware.device_memory = *available / job.ranks_here();
}

ProfileChoice named(const std::string& hardware, const Job& job) {
  ProfileChoice choice;
  const planner::HardwareProfile profile = find_profile(hardware);
  choice.origin = fmt::format("profile '{}'", profile.name);
  choice.hardware =
      is_of_hosts(profile) ? divided_among_ranks(profile, job) : planner::with_devices(profile, job.ranks);
  for (const std::string& reason :
       planner::profile_mismatches(profile, {kernels::cpu_model(), job.hosts, job.ranks, job.threads}))
    choice.notes.push_back(fmt::format("warning: hardware={} is used all the same: {}", hardware, reason));
  return choice;
}

// A file that several processes calibrated together, and the job that its name says.
struct ShapedFile {
  fs::path path;
  int hosts = 0, ranks_per_host = 0;
};

// Sorted by how near their job is to `job`: equal hosts first, then equal ranks per host.
std::vector<ShapedFile> files_of_processes(const Job& job) {
  std::vector<ShapedFile> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(planner::calibrated_profile_path().parent_path(), ignored)) {
    ShapedFile file{entry.path()};
    const std::string name = entry.path().filename().string();
    if (std::sscanf(name.c_str(), "hardware-%dx%d", &file.hosts, &file.ranks_per_host) != 2) continue;
    // As written and nothing else: no signs, no other ending.
    if (planner::calibrated_profile_path(file.hosts, file.ranks_per_host).filename() == name) files.push_back(file);
  }
  const auto distance = [&](const ShapedFile& file) {
    return std::tuple(std::abs(file.hosts - job.hosts), std::abs(file.ranks_per_host - job.ranks_per_host), file.path);
  };
  std::sort(files.begin(), files.end(),
            [&](const ShapedFile& a, const ShapedFile& b) { return distance(a) < distance(b); });
  return files;
}

// The user's calibrations that may speak of such a job, the nearest first. What lies between hosts only a job of
// several has measured: `of_one_host` takes those of one that are there and of no use.
std::vector<fs::path> calibrated_files(const Job& job, std::vector<std::string>& of_one_host) {
  const fs::path of_threads = planner::calibrated_profile_path();
  if (of_threads.empty()) return {};
  std::vector<fs::path> files, of_several;
  for (const ShapedFile& file : job.processes ? files_of_processes(job) : std::vector<ShapedFile>()) {
    if (file.hosts > 1) of_several.push_back(file.path);
    else if (job.hosts > 1) of_one_host.push_back(file.path.filename().string());
    else files.push_back(file.path);
  }
  if (is_there(of_threads)) {
    if (job.hosts > 1) of_one_host.push_back(of_threads.filename().string());
    else files.push_back(of_threads);
  }
  files.insert(files.end(), of_several.begin(), of_several.end());
  return files;
}

// The first of them that can be read; notes say why others were left.
std::optional<ProfileChoice> calibrated(const Job& job, std::vector<std::string>& notes) {
  std::vector<std::string> of_one_host;
  for (const fs::path& file : calibrated_files(job, of_one_host)) {
    try {
      const planner::HardwareProfile profile = planner::load_hardware(file);
      ProfileChoice choice;
      choice.hardware = divided_among_ranks(profile, job);
      choice.origin = fmt::format("profile {}{}", file.string(),
                                  profile.calibration ? fmt::format(", measured {}", profile.calibration->date) : "");
      for (const std::string& reason :
           planner::profile_mismatches(profile, {kernels::cpu_model(), job.hosts, job.ranks, job.threads}))
        choice.notes.push_back(
            fmt::format("warning: the calibration is used all the same: {}; {} again", reason, kMeasures));
      if (job.processes && file == planner::calibrated_profile_path()) {
        choice.notes.push_back(
            fmt::format("warning: the calibration is used all the same: its ranks were threads of one process; `mpirun "
                        "-n {} zoetrope calibrate` measures between processes",
                        job.ranks));
      }
      return choice;
    } catch (const Error& error) {
      // It may be of another version, and nothing depends on it but speed.
      notes.push_back(fmt::format("warning: the calibration cannot be used: {}", error.what()));
    }
  }
  if (!of_one_host.empty() && !job.links) {
    notes.push_back(
        fmt::format("warning: {} of one host cannot be used, as this job has {} and nobody measured what lies between "
                    "them; `mpirun -n {} zoetrope calibrate` over these hosts does",
                    fmt::join(of_one_host, ", "), job.hosts, job.ranks));
  }
  return std::nullopt;
}

// For rank 0, which plans with its own user's calibrations.
bool wants_links(const Job& job) {
  std::vector<std::string> notes;
  if (calibrated(job, notes)) return false;
  try {
    return machine::may_measure();
  } catch (const Error&) {
    return false;  // the plan says it to all ranks
  }
}

}  // namespace

Job job_of(comm::Communicator& world, std::optional<int64_t> threads, const std::string& hardware,
           std::optional<HostLinks>* known) {
  Job job = job_of(world.size(), threads);
  if (world.size() == 1) return job;
  job.processes = world.ranks_in_this_process() < world.size();
  job.threads = std::max(1, comm::process_threads(threads) / job.ranks_here());
  if (!job.processes) return job;
  std::map<std::string, int> ranks;
  const std::vector<std::string> hosts = hosts_of_ranks(world);
  for (const std::string& host : hosts) ++ranks[host];
  job.hosts = static_cast<int>(ranks.size());
  job.cores = cores_of_hosts(world);
  job.ranks_per_host = 0;
  for (const auto& [host, count] : ranks) job.ranks_per_host = std::max(job.ranks_per_host, count);
  if (job.hosts == 1 || !hardware.empty()) return job;
  struct Decision {
    bool wanted = false, known = false;
    HostLinks links = {};
  } decision;
  if (world.rank() == 0) {
    decision.wanted = wants_links(job);
    decision.known = known != nullptr && known->has_value();
    if (decision.known) decision.links = **known;
  }
  world.broadcast(0, &decision, sizeof decision, "the links between hosts");
  if (!decision.wanted) return job;
  job.links = decision.known ? decision.links : measure_host_links(world, hosts);
  if (known != nullptr) *known = job.links;
  return job;
}

Job job_of(int ranks, std::optional<int64_t> threads) {
  Job job;
  job.ranks = job.ranks_per_host = ranks;
  job.processes = comm::launched_by_mpi();
  job.threads = std::max(1, comm::process_threads(threads) / job.ranks_here());
  return job;
}

Job job_on(const planner::HardwareProfile& profile, int ranks, std::optional<int64_t> threads) {
  if (!profile.calibration || profile.calibration->hosts <= 1) return job_of(ranks, threads);
  Job job;
  job.ranks = ranks;
  job.ranks_per_host = std::min(ranks, std::max(1, profile.devices_per_host));
  job.hosts = static_cast<int>(ceil_div(ranks, job.ranks_per_host));
  job.processes = job.hosts > 1;
  job.threads = std::max(1, profile.calibration->threads);
  job.cores = profile.devices_per_host * job.threads;
  // As job_of(): the ranks of one process share its threads, which are all cores unless `threads` says otherwise.
  if (threads || !job.processes) {
    const int of_process = threads ? static_cast<int>(*threads) : job.cores;
    job.threads = std::max(1, of_process / job.ranks_here());
  }
  return job;
}

planner::HardwareProfile find_profile(const std::string& hardware) {
  // A file is one without the folder of names, too.
  const std::optional<fs::path> configs = find_config_folder();
  if (!configs && is_there(hardware)) return planner::load_hardware(hardware);
  return planner::find_hardware(hardware, hardware_folder(configs ? *configs : config_folder()));
}

bool is_of_hosts(const planner::HardwareProfile& profile) { return profile.calibration || profile.name == kAnyCpu; }

ProfileChoice choose_profile(const std::string& hardware, const Job& job, const ProfileUse& what) {
  if (!hardware.empty()) return named(hardware, job);
  std::vector<std::string> notes;
  const std::optional<planner::HardwareProfile> general = any_cpu();
  std::optional<ProfileChoice> choice = calibrated(job, notes);
  if (!choice && general) choice = measured(*general, job, what, notes);
  if (!choice && general) {
    choice = named(kAnyCpu, job);
    choice->notes.push_back(
        fmt::format("its figures are those of CPUs in general, as nobody calibrated this machine; {} it", kMeasures));
    use_links(*choice, job);
  }
  if (!choice) {
    choice.emplace();
    choice->notes.push_back(
        fmt::format("nobody calibrated this machine, and there is no profile '{}' for CPUs in general: the program's "
                    "configurations are not installed; {} it",
                    kAnyCpu, kMeasures));
  }
  choice->notes.insert(choice->notes.begin(), notes.begin(), notes.end());
  if (choice->known()) set_memory(choice->hardware, job, what.available);
  return *std::move(choice);
}

}  // namespace zoetrope::pipeline
