// Parameters for a model that nobody trained, from its tensor table: every activation keeps about the scale that a
// trained model's has, so that a run with them computes what a real one does, number for number and without overflow.
// For measuring and comparing; the video is noise.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/weights/formula_source.h"
#include "io/weights/tensor_table.h"

namespace zoetrope::io {

// `component` ("transformer", "vae", …) makes components of one seed differ. Values are F32 and depend on component,
// seed, name and shape only: a table of fewer layers has the same first layers.
std::shared_ptr<const FormulaSource> random_weights(const TensorTable& table, const std::string& component,
                                                    uint64_t seed, int threads = 1);

}  // namespace zoetrope::io
