// Runs end where a value leaves the finite numbers, and say which: NaN and infinity spread to everything after them,
// and a video of them looks like a result. What is checked is small or in cache; the search for the cause comes after a
// check has failed, so that sound runs do not pay for it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

#include "pipeline/model_files/model_folder.h"

namespace zoetrope::pipeline {

// Error "`what` holds nan at element 3 of [2, 8]" for NaN and infinity. values F32 or BF16; null: nothing to check.
void require_finite(const TensorView& values, std::string_view what);

// "weight 'NAME' in FILE": the first of its tensors that holds NaN or infinity where it is rounded to `dtype`. Reads
// all of them. Collective over `ranks`, which share the reading and wait for each other at every tensor; the same on
// each. null: by the caller alone.
std::optional<std::string> spoiled_weight(const ComponentWeights& weights, DType dtype, comm::Communicator* ranks);

// Looks at the values of a computation that ranks share, in the order in which they are made.
class FirstSpoiled {
 public:
  void look(std::string_view name, const TensorView& value) { add(name, !found_ && spoiled(value)); }
  void add(std::string_view name, bool spoiled);

  struct Place {
    std::string name;
    int rank;
  };
  // Collective: the earliest value that any rank found, and the lowest rank that did. Ranks must have looked at values
  // of the same names, each in as many parts as it has, and one of them must have found something (a CHECK).
  Place place(comm::Communicator& ranks) const;

 private:
  static bool spoiled(const TensorView& value);

  std::vector<std::string> names_;
  std::optional<size_t> found_;
};

}  // namespace zoetrope::pipeline
