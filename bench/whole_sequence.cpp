#include "bench/whole_sequence.h"

#include "zoetrope/communicator.h"

namespace zoetrope::bench {

void with_whole_sequence(const wan::TransformerConfig& config, int64_t tokens, DType dtype, Stream& stream,
                         const std::function<void(attention::ContextAttention& attention)>& body) {
  comm::run_ranks(1, [&](comm::Communicator& rank) {
    attention::ContextAttention attention = attention::plan({.batch = 1,
                                                             .tokens = tokens,
                                                             .heads = config.num_attention_heads,
                                                             .head_dim = config.attention_head_dim,
                                                             .dtype = dtype,
                                                             .scale = 0},
                                                            {}, rank, stream);
    body(attention);
  });
}

}  // namespace zoetrope::bench
