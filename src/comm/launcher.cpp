#include "comm/launcher.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>

#include "zoetrope/communicator.h"

#include "device/thread_team.h"

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

// Read once: MPI_Init of a process that nobody launched sets variables of its own.
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
int launched_rank() { return launch().rank; }

int process_threads(std::optional<int64_t> wanted) {
  if (wanted) return static_cast<int>(*wanted);
  const int available = available_threads();
  const bool bound = available < static_cast<int>(std::thread::hardware_concurrency());
  const std::optional<int> local = number(std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE"));
  if (!local || bound || !launched_by_mpi()) return available;
  return std::max(1, available / std::max(1, *local));
}

}  // namespace zoetrope::comm
