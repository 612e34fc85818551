#include "comm/mpi/watch.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>

#include "base/host_name.h"

namespace zoetrope::comm::mpi {

namespace {

using Seconds = std::chrono::duration<double>;

// Of a deadline: when the others are asked for the first time, and between two questions.
constexpr double kFirstQuestion = 1.0 / 8, kBetween = 1.0 / 16;
constexpr double kLeastBetween = 0.1, kMostBetween = 1;
// A live process answers within milliseconds, a starved one within this, or half the deadline where that is less.
constexpr double kAnswer = 4;
constexpr Seconds kBetweenLooks{0.1};
// What a process said that long before it stopped answering is no news.
constexpr Seconds kRecent{5};

}  // namespace

Home home_here() {
  Home home;
  host_name().copy(home.host, sizeof home.host - 1);
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  boot.copy(home.boot, sizeof home.boot - 1);
  home.pid = ::getpid();
  struct stat file {};
  if (::stat("/proc/self/ns/pid", &file) == 0) home.pid_namespace = file.st_ino;
  return home;
}

Watch::Watch(int rank, std::vector<Home> homes) : rank_(rank), homes_(std::move(homes)), peers_(homes_.size()) {}

std::vector<int> Watch::to_ask(Clock::time_point begin, double timeout_seconds) {
  const Clock::time_point now = Clock::now();
  const Seconds between(std::clamp(timeout_seconds * kBetween, kLeastBetween, kMostBetween));
  if (now - begin < Seconds(timeout_seconds * kFirstQuestion) || now - asked_at_ < between) return {};
  asked_at_ = now;
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    // One question at a time: those to a process that does not answer would pile up.
    if (rank == rank_ || peer.asked) continue;
    peer.asked = now;
    ranks.push_back(rank);
  }
  return ranks;
}

void Watch::answered(int rank, const Activity& activity) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.asked.reset();
  peer.heard = Clock::now();
  peer.activity = activity;
}

void Watch::paused() {
  for (Peer& peer : peers_)
    if (peer.asked) peer.asked = Clock::now();
}

bool Watch::is_silent(int rank, double timeout_seconds) const {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.ended) return true;
  return peer.asked && Clock::now() - *peer.asked > Seconds(std::min(kAnswer, timeout_seconds / 2));
}

bool Watch::on_this_host(int rank) const {
  const Home &here = homes_[static_cast<size_t>(rank_)], &there = homes_[static_cast<size_t>(rank)];
  const bool known = here.boot[0] != 0 && here.pid_namespace != 0;
  return known && std::string(here.boot) == there.boot && here.pid_namespace == there.pid_namespace;
}

std::optional<int> Watch::ended_process(bool now) {
  const bool looks = now || Clock::now() - looked_at_ >= kBetweenLooks;
  if (looks) looked_at_ = Clock::now();
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (looks && !peer.ended && rank != rank_ && on_this_host(rank))
      peer.ended = ::kill(static_cast<pid_t>(homes_[static_cast<size_t>(rank)].pid), 0) != 0 && errno == ESRCH;
    if (peer.ended) return rank;
  }
  return std::nullopt;
}

std::string Watch::host_of(int rank) const {
  const std::string host = homes_[static_cast<size_t>(rank)].host;
  const bool one = std::all_of(homes_.begin(), homes_.end(), [&](const Home& home) { return host == home.host; });
  return one ? "" : host;
}

std::vector<RankState> Watch::states(const Activity& own, double timeout_seconds) const {
  const Clock::time_point now = Clock::now();
  std::vector<RankState> all;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    RankState& state = all.emplace_back();
    state.rank = rank;
    state.host = homes_[static_cast<size_t>(rank)].host;
    state.activity = rank == rank_ ? own : peer.activity;
    if (rank == rank_) continue;
    const bool known = peer.heard && (!peer.asked || *peer.asked - *peer.heard < kRecent);
    if (!known) state.activity = {.kind = Activity::Kind::kUnknown};
    state.activity.seconds += Seconds(now - (known ? *peer.heard : peer.asked.value_or(now))).count();
    state.process_has_ended = peer.ended;
    if (peer.asked && is_silent(rank, timeout_seconds)) state.silent = Seconds(now - *peer.asked).count();
  }
  return all;
}

}  // namespace zoetrope::comm::mpi
