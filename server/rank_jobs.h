// Jobs on all ranks of a server that was started with mpirun, one after another: rank 0 says what, all do it together,
// and one that fails, or that rank 0 gives up, ends on all of them without ending the server. Knows no videos.
//
// While a job runs, a thread of each rank tells the others ten times a second whether this rank is still at it, has
// ended or has failed. Where one has failed, all stop the job's communicator, so that whoever waits for the failed rank
// gets an error; nobody goes on before all have ended.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "zoetrope/communicator.h"

namespace zoetrope::server {

class RankJobs {
 public:
  // This rank's part in a job. `stopped`: whether it is to be given up; for any thread.
  using Part = std::function<void(comm::Communicator& ranks, const std::function<bool()>& stopped)>;

  // Collective over `world`, whose ranks are processes and which must outlive this. `timeout_seconds`: of its waits.
  RankJobs(comm::Communicator& world, double timeout_seconds);
  RankJobs(const RankJobs&) = delete;
  RankJobs& operator=(const RankJobs&) = delete;
  // On rank 0: the others' follow() returns.
  ~RankJobs();

  int size() const { return world_.size(); }
  // Called on every rank after a job that failed on one, when all have ended it.
  std::function<void()> failed = [] {};

  // On rank 0, from one thread: all ranks do this job, which the others know by `order`. Throws Error with the first
  // failure of any rank.
  void run(const std::string& order, const Part& part);
  // On the others: the jobs that rank 0 runs, until it ends. part() makes this rank's part of an order.
  void follow(const std::function<Part(const std::string& order)>& part);

  // On rank 0: why no further job can run, as where a process does not answer; empty while they can. Any thread.
  std::string lost() const;

 private:
  enum class Word : uint8_t { kWait, kJob, kEnd };
  enum class State : uint8_t { kRuns, kEnded, kFailed };
  struct Job;
  std::string perform(const Part& part);
  void watch(Job& job);
  void keep_waiting();
  void say(Word word, const std::string& order = {});
  void note_lost(const char* why);

  comm::Communicator& world_;
  const double timeout_seconds_;
  const std::unique_ptr<comm::Communicator> orders_;  // on rank 0 guarded by mutex_
  const std::unique_ptr<comm::Communicator> states_;  // for the threads that watch
  // Of the jobs; another one after a job that failed.
  std::unique_ptr<comm::Communicator> ranks_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool job_runs_ = false, ends_ = false;
  std::string lost_;
  std::thread waiting_;  // rank 0: tells the others now and then that there is no job yet
};

}  // namespace zoetrope::server
