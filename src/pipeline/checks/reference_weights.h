// The weights that the float64 model has: the run's own, or those of the files that the run's were made from. Says how
// far the run's are from these, as their formats round.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "device/thread_team.h"
#include "io/weights/weights.h"
#include "models/reference/rows.h"
#include "pipeline/model_files/model_folder.h"

namespace zoetrope::pipeline {

class ReferenceWeights {
 public:
  // Of one expert; `files` may be `run`. `computed`: the dtype that the run holds them in. `poll` is called before each
  // tensor is read and may throw.
  ReferenceWeights(const Expert& run, const Expert& files, DType computed, ThreadTeam& team,
                   std::function<void()> poll);

  const reference::Parameters& parameters() const { return parameters_; }
  // From here on the tensors that are read are those of another stage.
  void begin_stage() { read_.clear(); }
  // Relative L2 error of the stage's result that the rounding of its tensors explains; 0 for the run's own weights.
  double budget();

  // A tensor that is further from the reference than rounding to its format explains; where both have one format, than
  // rounding to bf16 on the way there.
  struct Damaged {
    std::string tensor;
    double relative_l2, bound;
  };
  std::vector<Damaged> damaged() const;  // of those that were read

 private:
  bool same_format(const std::string& name) const;
  double error(const std::string& name);
  double allowed(const std::string& name) const;  // the largest error that the format explains

  std::shared_ptr<const io::WeightSource> run_, files_;  // the first null where both are the same
  DType computed_;
  std::function<void()> poll_;
  std::set<std::string> read_;            // by the stage
  std::map<std::string, double> errors_;  // of tensors that were read
  reference::Parameters parameters_;
};

// The largest relative L2 error of a matrix that is rounded to a format, by its name ("Q8_0", "F8_E4M3 with …"). Public
// for its test.
double largest_rounding(const std::string& format);

}  // namespace zoetrope::pipeline
