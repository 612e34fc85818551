// Progress: a bar on a terminal, plain lines in a log. A log gets the first step, one line per tenth of all steps, one
// every 10 s where a tenth takes longer, and one per minute inside a step.
#pragma once

#include <cstdint>
#include <string>

#include "trace/trace.h"

namespace zoetrope::cli {

// One line on a terminal, replaced by the next one; nothing in a log. Throws Error once the run was interrupted.
void show_progress(const std::string& text);

class Progress {
 public:
  // `unit` in the singular: "step", "frame".
  Progress(std::string title, std::string unit);
  ~Progress();
  void update(int64_t done, int64_t total);
  // Inside the current unit, after update(): `done` of `total` parts of it, named in the singular ("layer").
  void update_part(const char* part, int64_t done, int64_t total);

 private:
  // "14 s per step, 11 min 12 s left", estimated from `done` units.
  std::string rate(double done) const;
  void draw(double done, const std::string& part);

  std::string title_;
  std::string unit_;
  int64_t done_ = 0, total_ = 0;
  trace::Clock::time_point begin_;
  trace::Clock::time_point last_;
  int64_t last_tenth_ = 0;
  bool terminal_;
  bool open_ = false;  // there is a bar on the current line
};

// Bytes that are read or written, with their rate.
class BytesProgress {
 public:
  explicit BytesProgress(std::string title);
  ~BytesProgress();
  void update(int64_t done, int64_t total);

 private:
  std::string title_;
  trace::Clock::time_point begin_;
  trace::Clock::time_point last_;
  bool terminal_;
  bool open_ = false;  // there is a bar on the current line
  bool ended_ = false;
};

}  // namespace zoetrope::cli
