#include "attention/context_axis.h"

#include "base/error.h"

namespace zoetrope::attention {

ContextAxis::ContextAxis(comm::Communicator& context, const parallel::ContextLayout& layout)
    : context_(context), layout_(layout) {
  ZT_CHECK(layout.ranks() == context.size(), "a layout of {} ranks over {}", layout.ranks(), context.size());
  // Every rank has the same layout, so all leave the same splits out.
  if (layout.ulysses == 1 || layout.ring == 1) return;
  const int ring_index = layout.ring_index(rank()), ulysses_index = layout.ulysses_index(rank());
  ulysses_group_ = context_.split(ring_index, ulysses_index);
  ring_group_ = context_.split(ulysses_index, ring_index);
}

comm::Communicator& ContextAxis::ulysses_group() const {
  ZT_CHECK(layout_.ulysses > 1);
  return ulysses_group_ ? *ulysses_group_ : context_;
}

comm::Communicator& ContextAxis::ring_group() const {
  ZT_CHECK(layout_.ring > 1);
  return ring_group_ ? *ring_group_ : context_;
}

}  // namespace zoetrope::attention
