// MPI_Finalize waits for all ranks, also for one that has been stopped since the run was over. This ends the process
// where that takes too long, and the launcher then ends the others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace zoetrope::comm::mpi {

struct EndLimit {
  // In which this process runs; those in which it is itself stopped do not count.
  std::chrono::duration<double> seconds;
  std::string why;  // printed when they have passed, unless it is empty
};

class FinaliseLimit {
 public:
  explicit FinaliseLimit(EndLimit limit);
  ~FinaliseLimit();  // MPI_Finalize has returned
  FinaliseLimit(const FinaliseLimit&) = delete;
  FinaliseLimit& operator=(const FinaliseLimit&) = delete;

 private:
  void wait();

  const EndLimit limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool finalised_ = false;
  std::thread thread_;
};

// Prints `why`, unless it is empty. From here on the process ends within a second, whatever the caller does: whoever
// reads the output may be stopped, and a launcher on another host may not answer.
void print_and_exit_soon(const std::string& why);

}  // namespace zoetrope::comm::mpi
