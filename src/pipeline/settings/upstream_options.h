// Keys of MaxDiffusion's configuration files, so that they are read as they are: those with a meaning here are
// translated, those that ask for what is not built are refused, the rest is ignored. Keys of both programs with one
// meaning (height, flow_shift) are those of generate_options.h.
#pragma once

#include "base/options.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// After the keys of generate; both must outlive the set.
void describe_upstream_options(OptionSet& set, GenerateOptions& options);

}  // namespace zoetrope::pipeline
