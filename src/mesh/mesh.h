// The ranks of a job as named axes data × fsdp × context × tensor. The split of the context axis into rings and
// Ulysses groups is private to it: see context_axis.h. Not here: who owns which tokens or heads (schedule/).
#pragma once

#include <memory>
#include <string>

#include "zoetrope/communicator.h"

namespace zoetrope::mesh {

// Ranks along each axis; −1 on one of them means "what is left".
struct Degrees {
  int data = 1;      // batch and guidance branches
  int fsdp = 1;      // weights
  int context = -1;  // the sequence
  int tensor = 1;    // inside a layer
};

// The degrees of `ranks` ranks, with −1 replaced. Throws Error where a degree is no count, two are −1, the product is
// not the number of ranks, or an axis is not built yet (fsdp and tensor above 1).
Degrees resolve_degrees(const Degrees& degrees, int ranks);

// Coordinates of a rank: tensor fastest, then context, fsdp, data. A context group is so a run of neighbours (one
// node, one chip), which is where attention sends; the data axis, which exchanges once a step, crosses the slow links.
struct Coordinates {
  int data = 0, fsdp = 0, context = 0, tensor = 0;
};
Coordinates coordinates(const Degrees& degrees, int rank);

// Collective over `world`, which must outlive the mesh.
class Mesh {
 public:
  Mesh(comm::Communicator& world, const Degrees& degrees);

  const Degrees& degrees() const { return degrees_; }
  const Coordinates& here() const { return here_; }

  comm::Communicator& world() const { return world_; }
  // The ranks that differ from this one in that coordinate only, numbered by it.
  comm::Communicator& context() const { return *context_; }
  comm::Communicator& data() const { return *data_; }

 private:
  comm::Communicator& world_;
  Degrees degrees_;
  Coordinates here_;
  std::unique_ptr<comm::Communicator> context_;
  std::unique_ptr<comm::Communicator> data_;
};

}  // namespace zoetrope::mesh
