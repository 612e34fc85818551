// Progress: a bar on a terminal, plain lines in a log. A log gets the first step, one line per tenth of all steps, one
// every 10 s where a tenth takes longer, and one per minute inside a step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "trace/trace.h"

namespace zoetrope::cli {

// One line on a terminal, replaced by the next one; nothing in a log. Throws Error once the run was interrupted.
void show_progress(const std::string& text);

// What both kinds share: the bar, and the times of its start and its last change.
class ProgressBar {
 protected:
  explicit ProgressBar(std::string title);
  ~ProgressBar();  // ends the line of the bar
  void draw(double share, const std::string& text);
  // Time is counted from `seconds` ago on, for what comes after `done` units.
  void restart(int64_t done, double seconds = 0);

  std::string title_;
  trace::Clock::time_point begin_, last_;
  int64_t before_ = 0;  // units that begin_ does not count
  bool terminal_;
  bool open_ = false;  // there is a bar on the current line
};

class Progress : ProgressBar {
 public:
  using ProgressBar::restart;
  // `unit` in the singular: "step", "frame".
  Progress(std::string title, std::string unit);
  void update(int64_t done, int64_t total);
  // Inside the current unit, after update(): `done` of `total` parts of it, named in the singular ("layer").
  void update_part(const char* part, int64_t done, int64_t total);

 private:
  // "14 s per step, 11 min 12 s left", estimated from `done` units.
  std::string rate(double done) const;
  void draw_units(double done, const std::string& part);

  std::string unit_;
  int64_t done_ = 0, total_ = 0;
  int64_t last_tenth_ = 0;
};

// Bytes that are read or written, with their rate.
class BytesProgress : ProgressBar {
 public:
  explicit BytesProgress(std::string title) : ProgressBar(std::move(title)) {}
  void update(int64_t done, int64_t total);

 private:
  bool ended_ = false;
};

}  // namespace zoetrope::cli
