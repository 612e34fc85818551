// A configuration as text, and its complexity.
#include <fmt/format.h>

#include "planner/simulator.h"

namespace zoetrope::planner {

int Configuration::complexity(const HardwareProfile& hardware) const {
  const parallel::ContextLayout& context = layout.context;
  int settings = 0;
  settings += context.direction != parallel::Direction::kForward ? 1 : 0;
  settings += context.head_chunks > 1 ? 1 : 0;
  settings += softmax == parallel::Softmax::kFixedMax ? 1 : 0;
  settings += block_q != 0 && block_q != hardware.block_q ? 1 : 0;
  settings += context.ulysses > 1 && context.ring > 1 ? 1 : 0;
  return settings;
}

std::string Configuration::text() const {
  const parallel::ContextLayout& context = layout.context;
  std::string text;
  if (layout.data > 1) text = fmt::format("data {} x ", layout.data);
  if (!layout.sharded) {
    text += "unsharded";
  } else {
    text += fmt::format("context {} (Ulysses {} x ring {}", context.ranks(), context.ulysses, context.ring);
    if (context.ring > 1 && context.direction != parallel::Direction::kForward)
      text += fmt::format(", {}", direction_name(context.direction));
    text += ")";
  }
  if (softmax == parallel::Softmax::kFixedMax) text += fmt::format(", {}", softmax_name(softmax));
  if (context.head_chunks > 1) text += fmt::format(", {} head chunks", context.head_chunks);
  if (block_q > 0) text += fmt::format(", block_q {}", block_q);
  if (block_kv > 0) text += fmt::format(", block_kv {}", block_kv);
  return text;
}

}  // namespace zoetrope::planner
