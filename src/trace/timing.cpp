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

std::string Timing::to_string() const {
  // Children may finish before their parent is known: print by path, keeping first-named order among siblings.
  std::vector<std::string> done;
  std::string text;
  const auto emit = [&](auto&& self, const std::string& parent, int depth) -> void {
    for (const Phase& phase : phases_) {
      const size_t slash = phase.path.rfind('/');
      const std::string up = slash == std::string::npos ? "" : phase.path.substr(0, slash);
      if (up != parent || std::find(done.begin(), done.end(), phase.path) != done.end()) continue;
      done.push_back(phase.path);
      const std::string name = slash == std::string::npos ? phase.path : phase.path.substr(slash + 1);
      text += fmt::format("{:{}}{:<{}} {:>10.3f} s", "", 2 * depth, name, 32 - 2 * depth, phase.seconds);
      if (phase.calls > 1) text += fmt::format("   {} x {:.3f} s", phase.calls, phase.seconds / phase.calls);
      text += '\n';
      self(self, phase.path, depth + 1);
    }
  };
  emit(emit, "", 0);
  return text;
}

}  // namespace zoetrope::trace
