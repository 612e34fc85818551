#include "planner/attention_memory.h"

#include "parallel/program.h"

namespace zoetrope::planner {
namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kLineFloats = 16;  // a row of the state begins on a cache line

// o, l and m of every row, float32.
Bytes running_state(const parallel::Sizes& sizes, int64_t queries, int64_t heads) {
  const int64_t row = (sizes.head_dim + kLineFloats - 1) / kLineFloats * kLineFloats + 2;
  return Bytes(sizes.batch * heads) * queries * (row * kFloat);
}

}  // namespace

Bytes attention_workspace(const parallel::Sizes& sizes, const parallel::ContextLayout& layout,
                          parallel::Softmax softmax, int rank) {
  const parallel::AttentionProgram program = attention_program(sizes, layout, softmax, rank);
  Bytes bytes;
  for (const int64_t buffer : program.buffers) bytes += Bytes(buffer);
  if (layout.ring > 1)
    for (const parallel::ChunkBuffers& chunk : program.chunks)
      bytes += running_state(sizes, program.block.size(), chunk.heads.size());
  return bytes;
}

}  // namespace zoetrope::planner
