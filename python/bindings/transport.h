// Ranks whose messages Python carries: an object with send(peer, tag, bytes), receive(peer, tag, bytes), each giving
// something that wait(work, operation) waits for. zoetrope.torch has one over torch.distributed.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "zoetrope/communicator.h"

namespace zoetrope::python {

// `transport` must outlive it. Calls come without the interpreter's lock.
std::unique_ptr<comm::Communicator> make_communicator(const nanobind::object& transport, int rank, int size);

}  // namespace zoetrope::python
