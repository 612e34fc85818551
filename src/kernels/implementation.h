// The list of implementations of an op: fastest first, the scalar reference last. Each says why it cannot do a problem;
// any can be forced by name.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace zoetrope::kernels {

// Nothing, or the reason why an implementation cannot do the problem here ("needs AVX-512", "head_dim 300 > 256").
using Refusal = std::optional<std::string>;

template <typename Problem, typename Function>
struct Implementation {
  const char* name;
  Refusal (*supports)(const Problem&);  // null: every problem
  Function function;
};

// The first that supports the problem, or the one named by `forced` (empty: no force). Throws Error where the forced
// one is unknown (lists the names) or refuses (says why).
template <typename Problem, typename Function, size_t N>
const Implementation<Problem, Function>& choose(const char* op, const Implementation<Problem, Function> (&list)[N],
                                                const Problem& problem, std::string_view forced) {
  for (const auto& candidate : list) {
    if (!forced.empty() && forced != candidate.name) continue;
    const Refusal refusal = candidate.supports == nullptr ? Refusal{} : candidate.supports(problem);
    if (!refusal) return candidate;
    if (!forced.empty()) fail("{}: implementation '{}' cannot run here: {}", op, forced, *refusal);
  }
  std::string names;
  for (const auto& candidate : list) names += (names.empty() ? "" : ", ") + std::string(candidate.name);
  if (!forced.empty()) fail("{}: there is no implementation '{}'; there are: {}", op, forced, names);
  fail("{}: no implementation can do this problem; there are: {}", op, names);
}

}  // namespace zoetrope::kernels
