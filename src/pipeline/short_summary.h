// The report after a run in a few lines. Phase by phase it is trace/timing.h, memory_report.h and predicted_report.h.
#pragma once

#include <cstdint>
#include <string>

#include "zoetrope/attention.h"
#include "zoetrope/model.h"

#include "trace/timing.h"

namespace zoetrope::pipeline {

// `steps`: those that this run made. Time, memory, and where the prediction was furthest off, of which `result` has
// memory and prediction; a line feed at the end of each line.
std::string short_summary(const trace::Timing& timing, int64_t steps, const Video& result);

// "Exchange of keys and values in int8: off by 0.61 % (keys) and 0.54 % (values) at most"; empty where they were not
// rounded.
std::string kv_rounding_text(const Video& result, parallel::KVExchange exchange);

// "Attention in int8: 99.2 % of heads, off by 1.9 % at most in samples"; empty without attention_dtype.
std::string int8_heads_text(const attention::Counters& counters);

}  // namespace zoetrope::pipeline
