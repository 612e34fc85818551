// The context axis seen as a grid of R rings × U Ulysses ranks, Ulysses innermost: context rank c has ring index c / U
// and Ulysses index c % U. Ulysses groups are neighbours, the ring crosses the slow links. Only attention/ looks here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "zoetrope/communicator.h"

namespace zoetrope::mesh {

// The largest of parallel::legal_ulysses().
int default_ulysses(int context_degree, int64_t heads);
// Throws Error, listing the legal values, where `ulysses` is not one of them.
void check_ulysses(int64_t ulysses, int context_degree, int64_t heads);

// Collective over `context`, which must outlive it.
class ContextAxis {
 public:
  // `ulysses` must divide the size of `context`.
  ContextAxis(comm::Communicator& context, int ulysses);

  int degree() const { return context_.size(); }
  int rank() const { return context_.rank(); }
  int ulysses() const { return ulysses_; }
  int ring() const { return degree() / ulysses_; }
  int ulysses_index() const { return rank() % ulysses_; }
  int ring_index() const { return rank() / ulysses_; }

  comm::Communicator& communicator() const { return context_; }
  // The U ranks of one ring index, numbered by Ulysses index. Only where U > 1.
  comm::Communicator& ulysses_group() const;
  // The R ranks of one Ulysses index, numbered by ring index. Only where R > 1.
  comm::Communicator& ring_group() const;

 private:
  comm::Communicator& context_;
  int ulysses_;
  std::unique_ptr<comm::Communicator> ulysses_group_;  // both absent where U or R is 1: then one
  std::unique_ptr<comm::Communicator> ring_group_;     // of them is the context itself and the other is not needed
};

}  // namespace zoetrope::mesh
