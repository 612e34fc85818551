// A configuration as words to type: keys of `zoetrope generate`, and what other systems call the same split of the
// ranks. Chooses nothing.
#pragma once

#include <string>
#include <vector>

#include "planner/search.h"

namespace zoetrope::cli {

// Arguments of generate for one run, each key=value, that leave nothing about the ranks to be chosen: "ranks=8",
// "data_parallelism=2", …
std::vector<std::string> settings_of(const planner::Candidate& candidate);
// In one line for a shell.
std::string settings_text(const std::vector<std::string>& settings);

struct OtherSystem {
  std::string name;
  std::string flags;  // for one run; empty where the split is not possible there
  std::string note;   // then the reason; else what it does otherwise, if anything
};
// "not possible there: …", or the flags and what is different.
std::string system_text(const OtherSystem& system);

// diffusers, xDiT, SGLang and MaxDiffusion. docs/planner.md says which version of each. `pictures`: whether the model
// begins with a picture.
std::vector<OtherSystem> other_systems(const planner::Candidate& candidate, const planner::Work& work, bool pictures);

}  // namespace zoetrope::cli
