// The communicators of a context: its Ulysses groups are neighbours, its rings cross the slow links. Who is in which
// follows from the layout (zoetrope/context_layout.h).
#pragma once

#include <memory>

#include "zoetrope/communicator.h"
#include "zoetrope/context_layout.h"

namespace zoetrope::attention {

// Collective over `context`, which must outlive it and has the layout's ranks.
class ContextAxis {
 public:
  ContextAxis(comm::Communicator& context, const parallel::ContextLayout& layout);

  int degree() const { return context_.size(); }
  int rank() const { return context_.rank(); }

  comm::Communicator& context() const { return context_; }
  // The U ranks of one ring index, numbered by Ulysses index. Only where U > 1.
  comm::Communicator& ulysses_group() const;
  // The R ranks of one Ulysses index, numbered by ring index. Only where R > 1.
  comm::Communicator& ring_group() const;

 private:
  comm::Communicator& context_;
  parallel::ContextLayout layout_;
  std::unique_ptr<comm::Communicator> ulysses_group_;  // both absent where U or R is 1: then one
  std::unique_ptr<comm::Communicator> ring_group_;     // of them is the context itself and the other is not needed
};

}  // namespace zoetrope::attention
