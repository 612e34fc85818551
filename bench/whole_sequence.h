// Attention over a whole sequence on one rank, as the cases that time or check a whole transformer call it.
#pragma once

#include <cstdint>
#include <functional>

#include "zoetrope/attention.h"

#include "device/stream.h"
#include "models/wan/config.h"

namespace zoetrope::bench {

// body(attention) for a model of `config` in `dtype`, batch 1; what body throws comes out.
void with_whole_sequence(const wan::TransformerConfig& config, int64_t tokens, DType dtype, Stream& stream,
                         const std::function<void(attention::ContextAttention& attention)>& body);

}  // namespace zoetrope::bench
