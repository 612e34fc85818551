// How ranks of an MPI run end together: one error is printed once, all learn of it, all finalise; a rank that does not
// answer is not waited for. Runs on the progress thread of each process.
//
//   a body fails     → kFailed to the reporter (rank 0; where it does not answer, rank 1, …)
//   reporter         → prints the first failure that reaches it, kStop to all
//   kStop arrives    → pending and later waits of that rank throw, so its body ends
//   a body ends      → kEnded to the collector (the reporter after a failure, otherwise rank 0)
//   all have ended   → collector sends kRelease; all ranks call MPI_Finalize
//   some do not end  → after kGrace seconds the reporter calls MPI_Abort, which ends stopped processes too
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/runtime.h"

namespace zoetrope::comm::mpi {

class Ending {
 public:
  Ending(Runtime& runtime, int rank, int size);

  // All called on the progress thread with the runtime's mutex held.
  void body_ended(const std::string& failure, double timeout_seconds);
  void handle(const Control& message, int sender);
  void poll();  // deadlines
  bool released() const { return released_; }
  bool failed() const { return stopped_; }

 private:
  void notice_pause();
  void ask_reporter();
  void report();
  void tell_collector();
  void note_ended(int rank);
  void check_alive();
  [[noreturn]] static void abort_run();

  Runtime& runtime_;
  const int rank_;
  const int size_;
  double timeout_seconds_ = 300;
  bool ended_ = false;     // this rank's body
  bool stopped_ = false;   // the run has failed and all ranks know
  bool reporter_ = false;  // this process printed the failure
  bool released_ = false;
  int collector_ = 0;
  int candidate_ = 0;  // the rank that is asked to report
  std::optional<std::string> unreported_;
  std::vector<bool> ended_ranks_;
  std::vector<Clock::time_point> heard_;
  std::string why_;
  int failed_rank_ = -1;
  struct Report {
    int rank;
    std::string why;
  };
  std::optional<Report> to_report_;  // by this process
  Clock::time_point polled_at_ = Clock::now();
  Clock::time_point quiet_until_ = polled_at_;
  Clock::time_point asked_at_;
  Clock::time_point stopped_at_;
  Clock::time_point pinged_at_;
};

}  // namespace zoetrope::comm::mpi
