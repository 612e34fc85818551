#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/print.h"
#include "trace/elapsed.h"

namespace zoetrope::cli {
namespace {

constexpr double kBetweenLines = 10;   // seconds, in a log
constexpr double kBetweenBars = 0.05;  // seconds, on a terminal
constexpr int64_t kTenths = 10;

std::string bar_text(int64_t done, int64_t total) {
  constexpr int64_t kWidth = 30;
  const int64_t filled = total > 0 ? kWidth * done / total : kWidth;
  std::string bar(static_cast<size_t>(filled), '#');
  bar.append(static_cast<size_t>(kWidth - filled), '.');
  return bar;
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
  if (open_) print_error("\n");
}

void Progress::update(int64_t done, int64_t total) {
  const double per_unit = done > 0 ? trace::seconds_since(begin_) / static_cast<double>(done) : 0;
  const std::string left = done > 0 ? duration_text(per_unit * static_cast<double>(total - done)) : "?";
  if (terminal_) {
    replace_last_line(fmt::format("{} [{}] {}/{}  {:.3g} s/{}  {} left", title_, bar_text(done, total), done, total,
                                  per_unit, unit_, left));
    open_ = true;
  } else if (done == 0) {
    return;
  } else {
    // A log gets the first, one line per tenth of the work, and one every now and then where a tenth takes long.
    const int64_t tenth = total > 0 ? kTenths * done / total : kTenths;
    if (done > 1 && tenth == last_tenth_ && trace::seconds_since(last_) <= kBetweenLines) return;
    last_tenth_ = tenth;
    last_ = trace::Clock::now();
    print_error("{}: {} {} of {}, {:.3g} s/{}, {} left\n", title_, unit_, done, total, per_unit, unit_, left);
  }
}

BytesProgress::BytesProgress(std::string title)
    : title_(std::move(title)), begin_(trace::Clock::now()), last_(begin_), terminal_(isatty(STDERR_FILENO) != 0) {}

BytesProgress::~BytesProgress() {
  if (open_) print_error("\n");
}

void BytesProgress::update(int64_t done, int64_t total) {
  constexpr double kGiga = 1e-9;
  const double seconds = trace::seconds_since(begin_), gb = static_cast<double>(done) * kGiga;
  const std::string text = fmt::format("{:.2f}/{:.2f} GB  {:.2f} GB/s", gb, static_cast<double>(total) * kGiga,
                                       seconds > 0 ? gb / seconds : 0.0);
  if (ended_) return;
  ended_ = done == total;
  if (terminal_) {
    if (open_ && !ended_ && trace::seconds_since(last_) < kBetweenBars) return;
    last_ = trace::Clock::now();
    replace_last_line(fmt::format("{} [{}] {}", title_, bar_text(done, total), text));
    open_ = true;
  } else if (ended_ || trace::seconds_since(last_) > kBetweenLines) {
    last_ = trace::Clock::now();
    print_error("{}: {}\n", title_, text);
  }
}

}  // namespace zoetrope::cli
