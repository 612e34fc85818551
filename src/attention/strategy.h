// Validation of problems and strategies: everything that plan() refuses, with the legal values. The names and the
// configuration keys are public (zoetrope/attention.h).
#pragma once

#include <optional>

#include "zoetrope/attention.h"

#include "kernels/narrow/narrow.h"
#include "parallel/layout.h"
#include "parallel/shards.h"

namespace zoetrope::attention {

// The fields that a name and the other keys set, for any number of ranks; the rest is unset. Throws Error.
Strategy requested_strategy(const StrategyOptions& options);

// What one rank needs to multiply and round as these do on any number of ranks; the rest is unset.
StrategyOptions on_one_rank(const StrategyOptions& options);

// Whether the name says that a context has several ranks, and how they share the work. flash is for one, and gathers
// where there are more.
bool names_topology(const StrategyOptions& options);

// One line for the user, where the name is that of another program's kernel, which is computed as flash; else empty.
std::string strategy_note(const StrategyOptions& options);

// One line where tiles that were asked for, as for another kind of machine, are not what a CPU computes with; else
// empty.
std::string tile_note(const BlockSizes& sizes);

// Throws Error where shards are to follow measurements, which `command` does not make.
void require_fixed_shards(const StrategyOptions& options, const char* command);

// The problem with its scale filled in. Throws Error.
Problem checked_problem(const Problem& problem);

// The strategy with its layout and softmax filled in, for a context of `degree` ranks. Throws Error.
Strategy checked_strategy(const Strategy& strategy, int degree, int64_t heads,
                          const parallel::SettingNames& names = parallel::kKeyNames);

// Throws Error for keys and values that would travel in the dtype that they are computed in.
void check_kv_exchange(KVExchange exchange, DType dtype, const parallel::SettingNames& names = parallel::kKeyNames);
// Throws Error where queries and keys of `dtype` cannot be multiplied in `attention_dtype`.
void check_attention_dtype(AttentionDtype attention_dtype, DType dtype);
void check_int8_limit(double limit);                                      // of Strategy; throws Error
std::optional<kernels::NarrowFormat> narrow_format(KVExchange exchange);  // none: as computed

parallel::Sizes sizes_of(const Problem& problem, KVExchange exchange = KVExchange::kAsComputed);

}  // namespace zoetrope::attention
