// A configuration as text, and its complexity.
#include <fmt/format.h>

#include "planner/simulator.h"

namespace zoetrope::planner {

int Configuration::complexity(const HardwareProfile& hardware) const {
  const parallel::ContextLayout& context = layout.context;
  int settings = parallel::count_changed(context);
  settings += softmax == parallel::Softmax::kFixedMax ? 1 : 0;
  settings += block_q != 0 && block_q != hardware.block_q ? 1 : 0;
  settings += context.ulysses > 1 && context.ring > 1 ? 1 : 0;
  settings += layout.tensor > 1 ? 1 : 0;
  return settings;
}

std::string Configuration::text() const {
  std::string text = parallel::text(layout, softmax);
  if (block_q > 0) text += fmt::format(", block_q {}", block_q);
  if (block_kv > 0) text += fmt::format(", block_kv {}", block_kv);
  return text;
}

}  // namespace zoetrope::planner
