// How ranks of an MPI run end together: one error is printed once, all learn of it, all finalise; a rank that does not
// answer is not waited for. Runs on the progress thread of each process.
//
//   a body fails     → kFailed to the reporter (rank 0; where it does not answer, rank 1, …)
//   reporter         → prints the first failure that reaches it, kStop to all
//   kStop arrives    → pending and later waits of that rank throw, so its body ends
//   a body ends      → kEnded to the collector (the reporter after a failure, otherwise rank 0)
//   all have ended   → collector sends kRelease; all ranks meet and call MPI_Finalize
//   some do not end  → after kGrace seconds the reporter calls MPI_Abort, which ends stopped processes too
//   some do not come, because they were stopped in between → after a while the others call MPI_Abort, too; inside
//   MPI_Finalize they exit, and the launcher ends the job (srun: with --kill-on-bad-exit). Not where the program itself
//   calls MPI_Finalize.
//
// Two failures are reported before a body ends: a wait that has passed its deadline, and a process that has ended.
// After them less is waited for: until all have ended but those that do not answer, or for kGraceStalled.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/finalise_limit.h"
#include "comm/mpi/runtime.h"

namespace zoetrope::comm::mpi {

class Ending {
 public:
  Ending(Runtime& runtime, int rank, int size);

  // All called with the runtime's mutex held, on the progress thread, unless they say otherwise or are begin() or
  // is_paused().
  void begin(double timeout_seconds) { timeout_seconds_ = timeout_seconds; }
  void body_ended(const std::string& failure, double timeout_seconds);
  // This process failed outside of a run, of which no other is told. On any thread.
  void note_failure();
  // `text`: a sentence, and lines on who waits for whom.
  void stalled(const std::string& text);
  void handle(const Control& message, int sender);
  void poll();  // deadlines
  bool released() const { return released_; }
  bool failed() const { return stopped_; }
  bool failed_alone() const { return alone_; }  // note_failure()
  // The next two without the mutex. How long ranks that have ended are waited for: what is left of a failed run's
  // grace, else the deadline of a wait; no limit where they have not ended together.
  std::optional<EndLimit> end_limit() const;
  // Waits for all ranks before MPI_Finalize, in which mpirun may crash or hang when a process goes.
  void meet(MPI_Comm all) const;
  // Whether this process has been stopped for a while, or still is.
  bool is_paused() const;

 private:
  void notice_pause();
  void ask_reporter();
  void report();
  void tell_collector();
  void note_ended(int rank);
  void check_alive();
  void look_for_ended_processes(Clock::time_point now);
  bool only_silent_ones_run() const;
  std::chrono::duration<double> grace() const;  // from the failure until ranks that have not ended are killed
  // Prints `why`, unless it is empty.
  [[noreturn]] static void abort_run(const std::string& why = "");

  Runtime& runtime_;
  const int rank_;
  const int size_;
  double timeout_seconds_ = 300;
  bool ended_ = false;     // this rank's body
  bool stopped_ = false;   // the run has failed and all ranks know
  bool alone_ = false;     // this process has, outside of a run
  bool reporter_ = false;  // this process failed, and knows it first
  bool stalled_ = false;   // the failure is that of a rank that will hardly end by itself
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
  std::optional<Clock::time_point> saw_ended_process_;
  bool told_of_ended_process_ = false;
};

}  // namespace zoetrope::comm::mpi
