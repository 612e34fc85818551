// How much of a transformer's converted weights a run keeps in memory: as weights_in_memory and weight_memory say, or
// as much as fits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "pipeline/planning/run_workload.h"
#include "pipeline/settings/generate_options.h"
#include "planner/bytes.h"

namespace zoetrope::pipeline {

// Throws Error for keys that contradict one another, and for less memory than a stream of the model's weights needs,
// which depends on how they are stored.
void check_weight_memory(const MemoryQuestion& asked);

// The largest of [low, high] that `fits`, where all below one that fits do; low − 1 where none does.
int64_t largest(int64_t low, int64_t high, const std::function<bool(int64_t)>& fits);

// GB, in steps of 0.01: the most that weight_memory may be for the question to fit; unset where none does.
std::optional<double> largest_weight_memory(const MemoryQuestion& question, planner::Bytes available);
// The same where the options leave it to the program, and keeping all does not fit.
std::optional<double> weight_memory_to_fit(const MemoryQuestion& question, planner::Bytes available);
// The same for all of them: the least.
std::optional<double> weight_memory_to_fit(const std::vector<MemoryQuestion>& questions, planner::Bytes available);
// With the least of the transformer in memory that the options allow.
MemoryQuestion with_least_weights(const MemoryQuestion& question);
// What is run: with that weight_memory, or as the question is.
MemoryQuestion as_it_fits(const MemoryQuestion& question, planner::Bytes available);

// What io::Weights::Loading takes: 0: all in memory.
size_t weight_memory_bytes(const GenerateOptions& options);

}  // namespace zoetrope::pipeline
