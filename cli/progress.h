// Progress for people: a bar that redraws itself on a terminal, plain lines anywhere else. A log gets the first step,
// one line per tenth of all steps, and one every 10 s where a tenth takes longer.
#pragma once

#include <cstdint>
#include <string>

#include "trace/trace.h"

namespace zoetrope::cli {

class Progress {
 public:
  // `unit` in the singular: "step", "frame".
  Progress(std::string title, std::string unit);
  ~Progress();
  void update(int64_t done, int64_t total);

 private:
  std::string title_;
  std::string unit_;
  trace::Clock::time_point begin_;
  trace::Clock::time_point last_;
  int64_t last_tenth_ = 0;
  bool terminal_;
  bool open_ = false;  // a bar stands on the current line
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
  bool open_ = false;  // a bar stands on the current line
  bool ended_ = false;
};

// "1:23:45", "4:05" or "12.3 s".
std::string duration_text(double seconds);

}  // namespace zoetrope::cli
