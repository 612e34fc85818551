#include "comm/launcher.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>

namespace zoetrope::comm {

namespace {

std::optional<int> number(const char* text) {
  if (text == nullptr) return std::nullopt;
  const std::string_view view = text;
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < 0) return std::nullopt;
  return value;
}

// What the launcher divides: the cores of a container or of an allocation, not the machine's. A script between it and
// this process is bound as this process is, and says nothing.
int cores_to_share(const AvailableCores& own) {
  const int machine = std::max(own.affinity, static_cast<int>(std::thread::hardware_concurrency()));
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(getppid(), sizeof set, &set) != 0) return machine;
  const int launcher = CPU_COUNT(&set);
  const bool bound = std::getenv("OMPI_MCA_orte_bound_at_launch") != nullptr;
  return launcher < own.affinity || (launcher == own.affinity && bound) ? machine : launcher;
}

// Read once: in a process without a launcher MPI_Init sets variables of its own.
const Launch& launch() {
  static const Launch found = read_launch([](const char* name) { return std::getenv(name); });
  return found;
}

}  // namespace

// Both numbers must be there, and the namespace of the job with them: a shell inside a batch allocation has variables
// of the batch system (SLURM_NTASKS) without having been started as a rank, and those are not looked at. srun names its
// ranks through PMIx or PMI, or starts single processes, which then is what they are.
Launch read_launch(const std::function<const char*(const char*)>& variable) {
  struct Launcher {
    const char* rank;
    const char* ranks;
    const char* job;
  };
  constexpr Launcher kLaunchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE"},  // Open MPI's mpirun
      {"PMI_RANK", "PMI_SIZE", nullptr},                                   // srun --mpi=pmi2, Hydra
      {"PMIX_RANK", "SLURM_STEP_NUM_TASKS", "PMIX_NAMESPACE"},             // srun --mpi=pmix
  };
  for (const Launcher& launcher : kLaunchers) {
    const std::optional<int> rank = number(variable(launcher.rank));
    const std::optional<int> ranks = number(variable(launcher.ranks));
    if (!rank || !ranks || *rank >= *ranks) continue;
    if (launcher.job != nullptr && variable(launcher.job) == nullptr) continue;
    return {true, *ranks, *rank};
  }
  return {};
}

bool launched_by_mpi() { return launch().found; }
int launched_ranks() { return launch().ranks; }
int launched_processes_here() {
  const std::optional<int> local = number(std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE"));
  return launched_by_mpi() ? std::max(1, local.value_or(1)) : 1;
}

int process_threads(std::optional<int64_t> wanted) {
  if (wanted) return static_cast<int>(*wanted);
  const AvailableCores cores = available_cores();
  const int processes = launched_processes_here();
  if (processes == 1) return cores.threads();
  return threads_beside(cores, processes, cores_to_share(cores));
}

int threads_beside(const AvailableCores& cores, int processes, int cores_of_node) {
  // Those on each core: bound to parts of the node, or to nothing.
  const int sharing = (processes * cores.affinity + cores_of_node - 1) / cores_of_node;
  const int own = cores.affinity / std::max(1, sharing);
  return std::max(1, cores.quota ? std::min(own, static_cast<int>(*cores.quota) / processes) : own);
}

}  // namespace zoetrope::comm
