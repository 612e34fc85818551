// Which hosts the ranks of a job run on, and what of a host's cores they may use. Asks the system and the other ranks;
// what is made of it is profile_choice.h, admission.h and bench/calibrate.h.
#pragma once

#include <string>
#include <vector>

#include "zoetrope/communicator.h"

namespace zoetrope::pipeline {

// The name of each rank's host. Collective. Throws Error where the system does not tell it.
std::vector<std::string> hosts_of_ranks(comm::Communicator& world);

// Processes of the job on this rank's host. Collective.
int processes_on_this_host(comm::Communicator& world);

// The cores that the ranks of a host may use together, each bound to its own or not; of the host with the fewest, and
// so the same number on every rank. Collective.
int cores_of_hosts(comm::Communicator& world);

}  // namespace zoetrope::pipeline
