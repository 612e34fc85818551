// A component's weights as one of several ranks reads them that share its layers: of a tensor with a shard axis its
// part, of all others the whole. What is packed, streamed or cached from it is the part's.
#pragma once

#include <memory>

#include "io/weights/tensor_table.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

// Part `part` of `parts` of `whole`, which has the tensors of `table`; their shapes are those of part_of(table, parts,
// part). Its identity is another for every part.
std::shared_ptr<const WeightSource> part_source(std::shared_ptr<const WeightSource> whole, TensorTable table, int parts,
                                                int part);

}  // namespace zoetrope::io
