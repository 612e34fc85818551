// Jobs on all ranks of a server that was started with mpirun, one after another: rank 0 says which, all do it together,
// and a job that fails, or that rank 0 gives up, ends on all of them (watched_ranks.h) without ending the server. Knows
// no videos.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "zoetrope/communicator.h"

#include "pipeline/ranks/watched_ranks.h"

namespace zoetrope::server {

class RankJobs {
 public:
  using Part = pipeline::WatchedRanks::Part;

  // Collective over `world`, whose ranks are processes and which must outlive this. `timeout_seconds`: the deadline of
  // the waits of `world`.
  RankJobs(comm::Communicator& world, double timeout_seconds);
  RankJobs(const RankJobs&) = delete;
  RankJobs& operator=(const RankJobs&) = delete;
  // On rank 0: follow() of the other ranks returns.
  ~RankJobs();

  int size() const { return world_.size(); }
  // Called on every rank after a job that failed on one, when all have ended it.
  std::function<void()> on_failure = [] {};

  // On rank 0, from one thread: all ranks do this job, of which the others get `order`. Throws Error with the first
  // failure of any rank.
  void run(const std::string& order, const Part& part);
  // On the others: does the jobs that rank 0 runs, until that ends. part(order) is this rank's part of a job.
  void follow(const std::function<Part(const std::string& order)>& part);

  // On rank 0: why no further job can run, as where a process does not answer or does not end a job that failed; empty
  // while one can. Any thread; does not wait for other ranks.
  std::string lost() const;

 private:
  enum class Order : uint8_t { kQuestion, kJob, kEnd };  // kQuestion: are you there?
  std::string perform(const Part& part);
  void ask_now_and_then();
  void send(Order order, const std::string& text = {});
  void gather_answers();
  void note_lost(const char* why);

  comm::Communicator& world_;
  const double timeout_seconds_;
  std::mutex sending_;  // of rank 0, held while it waits for the others
  const std::unique_ptr<comm::Communicator> orders_;
  pipeline::WatchedRanks watched_;

  mutable std::mutex mutex_;  // never held in a wait for other ranks
  std::condition_variable changed_;
  bool job_runs_ = false, ends_ = false;
  std::string lost_;
  std::thread asking_;  // rank 0: whether the others are there while no job runs
};

}  // namespace zoetrope::server
