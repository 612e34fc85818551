#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "base/error.h"
#include "base/print.h"
#include "base/words.h"
#include "cli/interrupt.h"
#include "trace/elapsed.h"

namespace zoetrope::cli {
namespace {

constexpr double kBetweenLines = 10;      // seconds, in a log
constexpr double kBetweenPartLines = 60;  // within a step or frame
constexpr double kBetweenBars = 0.05;     // seconds, on a terminal
constexpr int64_t kTenths = 10;

std::string bar_text(double share) {
  constexpr size_t kWidth = 30;
  const auto filled = static_cast<size_t>(kWidth * share);
  return std::string(filled, '#') + std::string(kWidth - filled, '.');
}

double share_of(int64_t done, int64_t total) {
  return total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
}

}  // namespace

void show_progress(const std::string& text) {
  if (interrupted()) fail("interrupted");
  if (isatty(STDERR_FILENO) == 0) return;
  replace_last_line(text);
}

ProgressBar::ProgressBar(std::string title)
    : title_(std::move(title)), begin_(trace::Clock::now()), last_(begin_), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (open_) print_error("\n");
}

void ProgressBar::restart(int64_t done, double seconds) {
  begin_ =
      trace::Clock::now() - std::chrono::duration_cast<trace::Clock::duration>(std::chrono::duration<double>(seconds));
  before_ = done;
}

void ProgressBar::draw(double share, const std::string& text) {
  replace_last_line(fmt::format("{} [{}] {}", title_, bar_text(share), text));
  last_ = trace::Clock::now();
  open_ = true;
}

Progress::Progress(std::string title, std::string unit) : ProgressBar(std::move(title)), unit_(std::move(unit)) {}

std::string Progress::rate(double done) const {
  const double counted = done - static_cast<double>(before_);
  if (counted <= 0) return "";
  const double per_unit = trace::seconds_since(begin_) / counted;
  return fmt::format("{} per {}, {} left", duration_text(per_unit), unit_,
                     duration_text(per_unit * (static_cast<double>(total_) - done)));
}

void Progress::draw_units(double done, const std::string& part) {
  draw(total_ > 0 ? done / static_cast<double>(total_) : 1,
       fmt::format("{}/{}{}  {}", done_, total_, part, rate(done)));
}

void Progress::update(int64_t done, int64_t total) {
  done_ = done;
  total_ = total;
  if (terminal_) {
    draw_units(static_cast<double>(done), "");
  } else if (done == 0) {
    return;
  } else {
    // A log gets the first, one line per tenth of the work, and one every kBetweenLines where a tenth takes longer.
    const int64_t tenth = total > 0 ? kTenths * done / total : kTenths;
    if (done > 1 && tenth == last_tenth_ && trace::seconds_since(last_) <= kBetweenLines) return;
    last_tenth_ = tenth;
    last_ = trace::Clock::now();
    print_error("{}: {} {} of {}, {}\n", title_, unit_, done, total, rate(static_cast<double>(done)));
  }
}

void Progress::update_part(const char* part, int64_t done, int64_t total) {
  const double reached = static_cast<double>(done_) + share_of(done, total), since = trace::seconds_since(last_);
  if (terminal_) {
    // The first is drawn immediately.
    const bool first = done_ == 0 && done == 1;
    if (!first && since < kBetweenBars) return;
    draw_units(reached, fmt::format(", {} {}/{}", part, done, total));
  } else {
    if (since < kBetweenPartLines) return;
    last_ = trace::Clock::now();
    print_error("{}: in {} {} of {}, {} {} of {}, {}\n", title_, unit_, done_ + 1, total_, part, done, total,
                rate(reached));
  }
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
    draw(share_of(done, total), text);
  } else if (ended_ || trace::seconds_since(last_) > kBetweenLines) {
    last_ = trace::Clock::now();
    print_error("{}: {}\n", title_, text);
  }
}

}  // namespace zoetrope::cli
