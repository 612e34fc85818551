#include "trace/timing.h"

#include <algorithm>

#include "base/error.h"

namespace zoetrope::trace {

void Timing::declare(const std::string& path) {
  for (const Phase& phase : phases_) {
    if (phase.path == path) return;
  }
  Phase phase;
  phase.path = path;
  phases_.push_back(phase);
}

void Timing::add(const std::string& path, double seconds) {
  for (Phase& phase : phases_) {
    if (phase.path == path) {
      phase.seconds += seconds;
      ++phase.calls;
      return;
    }
  }
  phases_.push_back({path, seconds, 1});
}

double Timing::seconds(const std::string& path) const {
  for (const Phase& phase : phases_) {
    if (phase.path == path) return phase.seconds;
  }
  return 0;
}

std::vector<Timing::Phase> Timing::phases() const {
  // Children may finish before their parent is known: by path, in first-named order among siblings.
  std::vector<Phase> phases;
  const auto add = [&](auto&& self, const std::string& parent) -> void {
    for (const Phase& phase : phases_) {
      const size_t slash = phase.path.rfind('/');
      if ((slash == std::string::npos ? "" : phase.path.substr(0, slash)) != parent) continue;
      phases.push_back(phase);
      self(self, phase.path);
    }
  };
  add(add, "");
  return phases;
}

std::string Timing::to_string() const {
  std::string text;
  for (const Phase& phase : phases()) {
    const size_t slash = phase.path.rfind('/');
    const std::string name = slash == std::string::npos ? phase.path : phase.path.substr(slash + 1);
    const auto indent = 2 * std::count(phase.path.begin(), phase.path.end(), '/');
    text += fmt::format("{:{}}{:<{}} {:>10.3f} s", "", indent, name, 32 - indent, phase.seconds);
    if (phase.calls > 1) text += fmt::format("   {} x {:.3f} s", phase.calls, phase.seconds / phase.calls);
    text += '\n';
  }
  return text;
}

}  // namespace zoetrope::trace
