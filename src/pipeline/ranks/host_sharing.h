// The processes of a job that run on one host, as they share packed weights (io/weights/host_sharing.h).
#pragma once

#include <memory>

#include "zoetrope/communicator.h"

#include "io/weights/host_sharing.h"

namespace zoetrope::pipeline {

// Collective over `world`, whose ranks are processes. Null where this one is alone on its host.
std::unique_ptr<io::HostSharing> share_host(comm::Communicator& world);

// `host`: ranks that may see each other's memory. The memory is a file without a name, which the system frees when the
// last process that uses it has ended, however it ends.
std::unique_ptr<io::HostSharing> host_sharing(std::unique_ptr<comm::Communicator> host);

}  // namespace zoetrope::pipeline
