// The timing summary of a run: nested phases with seconds, printed for people. Not a profiler: see trace.h.
#pragma once

#include <string>
#include <vector>

#include "trace/trace.h"

namespace zoetrope::trace {

class Timing {
 public:
  // Fixes the place of a phase in the summary before it runs.
  void declare(const std::string& path);
  // Adds seconds to the phase `path` ("Inference/Denoise"), which appears in the order of first use.
  void add(const std::string& path, double seconds);
  double seconds(const std::string& path) const;  // 0 if the phase never ran
  struct Phase {
    std::string path;
    double seconds = 0;
    int calls = 0;
  };
  // Each before its parts, in the order of first use.
  std::vector<Phase> phases() const;
  // One line per phase, children indented under their parent.
  std::string to_string() const;

  // Times a scope.
  class Scope {
   public:
    Scope(Timing& timing, std::string path) : timing_(timing), path_(std::move(path)), begin_(Clock::now()) {}
    ~Scope() { timing_.add(path_, std::chrono::duration<double>(Clock::now() - begin_).count()); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Timing& timing_;
    std::string path_;
    Clock::time_point begin_;
  };

 private:
  std::vector<Phase> phases_;
};

}  // namespace zoetrope::trace
