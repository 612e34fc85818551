#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace zoetrope::cli {
namespace {

double seconds_since(trace::Clock::time_point then) {
  return std::chrono::duration<double>(trace::Clock::now() - then).count();
}

}  // namespace

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  if (whole >= 60) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{:.1f} s", seconds);
}

Progress::Progress(std::string title, std::string unit)
    : title_(std::move(title)),
      unit_(std::move(unit)),
      begin_(trace::Clock::now()),
      last_(begin_),
      terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() {
  if (open_) fmt::print(stderr, "\n");
}

void Progress::update(int64_t done, int64_t total) {
  const double per_unit = done > 0 ? seconds_since(begin_) / static_cast<double>(done) : 0;
  const std::string left = done > 0 ? duration_text(per_unit * static_cast<double>(total - done)) : "?";
  if (terminal_) {
    constexpr int64_t kWidth = 30;
    const int64_t filled = total > 0 ? kWidth * done / total : kWidth;
    std::string bar(static_cast<size_t>(filled), '#');
    bar.append(static_cast<size_t>(kWidth - filled), '.');
    fmt::print(stderr, "\r\x1b[K{} [{}] {}/{}  {:.3g} s/{}  {} left", title_, bar, done, total, per_unit, unit_, left);
    open_ = true;
  } else if (done == 0) {
    return;
  } else if (done == total || done == 1 || seconds_since(last_) > 10) {
    // A log gets the first, the last and one every ten seconds.
    last_ = trace::Clock::now();
    fmt::print(stderr, "{}: {} {} of {}, {:.3g} s/{}, {} left\n", title_, unit_, done, total, per_unit, unit_, left);
  }
  std::fflush(stderr);
}

}  // namespace zoetrope::cli
