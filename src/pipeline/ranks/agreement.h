// Ranks that were started with different settings, or as others than they say, would compute nonsense or hang: they are
// refused at the start.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "zoetrope/communicator.h"

namespace zoetrope::pipeline {

// Rank `root`'s text, of any length, on every rank. Collective. `operation` (a string literal) names the waits.
std::string broadcast_text(comm::Communicator& world, int root, std::string text, const char* operation);

// `values` is one "key=value", or another fact, a line. Collective. Throws the same Error on every rank where a rank's
// lines differ from rank 0's, naming the rank and the first two that do.
void require_agreement(comm::Communicator& world, const std::string& values);

// Collective. Every rank brings a refusal, or an empty one; all throw Error with the first that is not empty, so that
// none goes on and waits for the others. `operation` (a string literal) names the waits.
void fail_together(comm::Communicator& world, const std::string& refusal, const char* operation);

// As above, where the refusals are what `body` throws.
void fail_together(comm::Communicator& world, const char* operation, const std::function<void()>& body);

// Whether `mine` is true on all. Collective.
bool on_every_rank(comm::Communicator& ranks, bool mine);

// Throws Error where the key `ranks` says a number that is not the job's.
void require_ranks(const std::optional<int64_t>& said, const comm::Communicator& world);

// The given seed; for -1 one that rank 0 draws, of up to 32 bits, so that it is short to type. Collective.
int64_t agreed_seed(comm::Communicator& world, int64_t asked);

}  // namespace zoetrope::pipeline
