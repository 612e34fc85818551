// Refusals and sub-communicators.
#include "mesh/context_axis.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/shards.h"

namespace zoetrope::mesh {

using parallel::legal_ulysses;

int default_ulysses(int context_degree, int64_t heads) { return legal_ulysses(context_degree, heads).back(); }

void check_ulysses(int64_t ulysses, int context_degree, int64_t heads) {
  const std::vector<int> legal = legal_ulysses(context_degree, heads);
  if (std::find(legal.begin(), legal.end(), ulysses) != legal.end()) return;
  const std::string values = fmt::format("{}", fmt::join(legal, ", "));
  if (ulysses < 1) fail("ulysses_shards={} must be at least 1; legal values: {}", ulysses, values);
  if (context_degree % ulysses != 0) {
    fail("ulysses_shards={} does not divide the context degree {}; legal values: {}", ulysses, context_degree, values);
  }
  fail("ulysses_shards={} is more than the {} heads, and a rank cannot attend less than one head; legal values: {}",
       ulysses, heads, values);
}

ContextAxis::ContextAxis(comm::Communicator& context, int ulysses) : context_(context), ulysses_(ulysses) {
  if (ulysses < 1 || context.size() % ulysses != 0) {
    fail("ulysses_shards={} does not divide the context degree {}; legal values: {}", ulysses, context.size(),
         fmt::join(legal_ulysses(context.size(), context.size()), ", "));
  }
  // Every rank knows U and P, so all leave the same splits out.
  if (ulysses_ == 1 || ulysses_ == degree()) return;
  ulysses_group_ = context_.split(ring_index(), ulysses_index());
  ring_group_ = context_.split(ulysses_index(), ring_index());
}

comm::Communicator& ContextAxis::ulysses_group() const {
  ZT_CHECK(ulysses_ > 1);
  return ulysses_group_ ? *ulysses_group_ : context_;
}

comm::Communicator& ContextAxis::ring_group() const {
  ZT_CHECK(ring() > 1);
  return ring_group_ ? *ring_group_ : context_;
}

}  // namespace zoetrope::mesh
