// Degrees to axes.
#include "mesh/mesh.h"

#include <vector>

#include "base/error.h"

namespace zoetrope::mesh {
namespace {

struct Named {
  const char* key;
  int Degrees::*degree;
};

constexpr Named kAxes[] = {{"data_parallelism", &Degrees::data},
                           {"fsdp_parallelism", &Degrees::fsdp},
                           {"context_parallelism", &Degrees::context},
                           {"tensor_parallelism", &Degrees::tensor}};

}  // namespace

Degrees resolve_degrees(const Degrees& degrees, int ranks) {
  Degrees resolved = degrees;
  const Named* open = nullptr;
  int64_t product = 1;
  for (const Named& axis : kAxes) {
    const int degree = degrees.*axis.degree;
    if (degree == -1) {
      if (open != nullptr) fail("{} and {} are both -1, but only one degree can be what is left", open->key, axis.key);
      open = &axis;
      continue;
    }
    if (degree < 1) fail("{}={} is not a degree; legal are 1, 2, 3, … and -1 for what is left", axis.key, degree);
    product *= degree;
  }
  if (open != nullptr) {
    if (ranks % product != 0) {
      fail("{}=-1 takes what is left, but {} ranks do not divide by the product {} of the other degrees", open->key,
           ranks, product);
    }
    resolved.*open->degree = static_cast<int>(ranks / product);
  } else if (product != ranks) {
    fail(
        "data_parallelism={} × fsdp_parallelism={} × context_parallelism={} × tensor_parallelism={} make {} ranks, "
        "but there are {}; one degree may be -1 for what is left",
        degrees.data, degrees.fsdp, degrees.context, degrees.tensor, product, ranks);
  }
  if (resolved.fsdp > 1) fail("fsdp_parallelism={} is not built yet; the legal value is 1", resolved.fsdp);
  if (resolved.tensor > 1) fail("tensor_parallelism={} is not built yet; the legal value is 1", resolved.tensor);
  return resolved;
}

Coordinates coordinates(const Degrees& degrees, int rank) {
  Coordinates at;
  at.tensor = rank % degrees.tensor;
  rank /= degrees.tensor;
  at.context = rank % degrees.context;
  rank /= degrees.context;
  at.fsdp = rank % degrees.fsdp;
  at.data = rank / degrees.fsdp;
  return at;
}

Mesh::Mesh(comm::Communicator& world, const Degrees& degrees)
    : world_(world), degrees_(resolve_degrees(degrees, world.size())), here_(coordinates(degrees_, world.rank())) {
  const int outer = here_.data * degrees_.fsdp + here_.fsdp;
  context_ = world.split(outer * degrees_.tensor + here_.tensor, here_.context);
  data_ = world.split((here_.fsdp * degrees_.context + here_.context) * degrees_.tensor + here_.tensor, here_.data);
}

}  // namespace zoetrope::mesh
