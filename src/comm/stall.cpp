#include "comm/stall.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "comm/transport.h"

namespace zoetrope::comm {

namespace {

// What does not fit is cut off.
template <size_t N>
void copy_text(char (&to)[N], const std::string& text) {
  std::memset(to, 0, N);
  text.copy(to, N - 1);
}

const RankState* state_of(std::span<const RankState> ranks, int rank) {
  const auto found = std::find_if(ranks.begin(), ranks.end(), [&](const RankState& r) { return r.rank == rank; });
  return found != ranks.end() ? &*found : nullptr;
}

bool answers(const RankState& rank) { return rank.silent <= 0 && !rank.process_has_ended; }

bool waits(const RankState& rank) { return answers(rank) && rank.activity.kind == Activity::Kind::kWaits; }

// From `waiting` on, each the one that the rank before it waits for, up to the first that does not wait or was met.
std::vector<const RankState*> chain_from(std::span<const RankState> ranks, int waiting) {
  std::vector<const RankState*> chain;
  const RankState* next = state_of(ranks, waiting);
  while (next != nullptr && std::find(chain.begin(), chain.end(), next) == chain.end()) {
    chain.push_back(next);
    next = waits(*next) ? state_of(ranks, next->activity.peer) : nullptr;
  }
  if (next != nullptr) chain.push_back(next);  // a circle: it is in the chain twice
  return chain;
}

thread_local bool g_watches = false;

std::string seconds_text(double seconds) { return fmt::format("{:.1f} s", seconds); }

// "'ring hop' at step 3"
std::string place(const Activity& activity) {
  const std::string operation =
      activity.operation[0] != 0 ? fmt::format("'{}'", activity.operation) : std::string("no operation");
  return operation + at_step(activity.step);
}

std::string name(const RankState& rank) { return fmt::format("rank {} on {}", rank.rank, rank.host); }

std::string verdict_on(const RankState& rank, double timeout) {
  const Activity& activity = rank.activity;
  const bool known = activity.kind != Activity::Kind::kUnknown;
  const std::string last = known ? "; it last entered " + place(activity) : std::string();
  if (rank.process_has_ended) return fmt::format("{} is dead: its process has ended{}", name(rank), last);
  if (rank.silent > 0)
    return fmt::format("{} is dead: no sign of life for {}{}", name(rank), seconds_text(rank.silent), last);
  if (!known) return fmt::format("{} has not answered yet", name(rank));
  if (activity.kind == Activity::Kind::kEnded) return fmt::format("{} has ended its part{}", name(rank), last);
  // The wait may have begun a little before the rank entered what it does not leave.
  const bool moves = activity.seconds < timeout / 2;
  return fmt::format("{} is {}: it last entered {}, {} ago", name(rank), moves ? "slow" : "stalled", place(activity),
                     seconds_text(activity.seconds));
}

std::string doing(const RankState& rank) {
  const Activity& activity = rank.activity;
  if (rank.process_has_ended) return "its process has ended";
  if (rank.silent > 0) return "no sign of life for " + seconds_text(rank.silent);
  switch (activity.kind) {
    case Activity::Kind::kWaits:
      return fmt::format("waits for rank {} in {}, {}, {} bytes to {}{}", activity.peer, place(activity),
                         seconds_text(activity.seconds), activity.bytes, activity.sends ? "send" : "receive",
                         activity.computes ? ", on another thread than its own" : "");
    case Activity::Kind::kComputes:
      return "computes";
    case Activity::Kind::kEnded:
      return "has ended its part";
    case Activity::Kind::kUnknown:
      break;
  }
  return "has not answered yet";
}

std::string line_on(const RankState& rank) {
  const Activity& activity = rank.activity;
  std::string line = fmt::format("  {}: {}", name(rank), doing(rank));
  const bool says_where = answers(rank) && activity.kind == Activity::Kind::kWaits;
  if (!says_where && activity.kind != Activity::Kind::kUnknown)
    line += fmt::format(", last entered {}", place(activity));
  if (answers(rank) && (activity.kind == Activity::Kind::kComputes || activity.kind == Activity::Kind::kEnded))
    line += fmt::format(", {} ago", seconds_text(activity.seconds));
  return line + "\n";
}

}  // namespace

void Activity::set_operation(const std::string& name) { copy_text(operation, name); }
void Activity::set_step(const std::string& name) { copy_text(step, name); }

std::vector<int> awaited(std::span<const RankState> ranks, int waiting) {
  const std::vector<const RankState*> chain = chain_from(ranks, waiting);
  if (chain.empty()) return {};
  // Whoever waits for several names one of them, but a process that is gone explains every wait.
  if (answers(*chain.back())) {
    std::vector<int> gone;
    for (const RankState& rank : ranks)
      if (!answers(rank)) gone.push_back(rank.rank);
    if (!gone.empty()) return gone;
  }
  const auto first = std::find(chain.begin(), chain.end() - 1, chain.back());
  if (first == chain.end() - 1) return {chain.back()->rank};
  std::vector<int> circle, computing;
  for (auto at = first; at != chain.end() - 1; ++at) {
    circle.push_back((*at)->rank);
    if ((*at)->activity.computes) computing.push_back((*at)->rank);
  }
  return computing.empty() ? circle : computing;
}

std::optional<double> seconds_since_progress(std::span<const RankState> ranks, int waiting) {
  const std::vector<int> last = awaited(ranks, waiting);
  if (last == std::vector<int>{waiting}) return std::nullopt;
  std::optional<double> least;
  for (const int number : last) {
    const RankState& rank = *state_of(ranks, number);
    if (!answers(rank) || rank.activity.kind == Activity::Kind::kEnded) return std::nullopt;
    least = std::min(least.value_or(rank.activity.seconds), rank.activity.seconds);
  }
  return least;
}

std::string verdict(std::span<const RankState> ranks, int waiting, double timeout) {
  const std::vector<int> last = awaited(ranks, waiting);
  if (last.empty()) return "the rank that is waited for is not known";
  const RankState& first = *state_of(ranks, last[0]);
  if (last.size() == 1) return verdict_on(first, timeout);
  if (!answers(first))
    return fmt::format("{}; so are ranks {}", verdict_on(first, timeout),
                       fmt::join(last.begin() + 1, last.end(), ", "));
  return fmt::format("ranks {} wait for each other", fmt::join(last, ", "));
}

std::string waits_table(std::span<const RankState> ranks, int waiting, size_t most) {
  const std::vector<int> last = awaited(ranks, waiting);
  const auto is_awaited = [&](const RankState& rank) {
    return std::find(last.begin(), last.end(), rank.rank) != last.end();
  };
  std::string lines;
  size_t left_out = 0;
  for (const bool awaited_ones : {true, false})
    for (const RankState& rank : ranks) {
      if (is_awaited(rank) != awaited_ones) continue;
      const std::string line = line_on(rank);
      if (lines.size() + line.size() <= most) lines += line;
      else ++left_out;
    }
  return left_out > 0 ? fmt::format("{}  and {} more\n", lines, left_out) : lines;
}

WatchingThread::WatchingThread() { g_watches = true; }
WatchingThread::~WatchingThread() { g_watches = false; }
bool WatchingThread::is_this() { return g_watches; }

}  // namespace zoetrope::comm
