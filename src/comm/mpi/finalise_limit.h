// MPI_Finalize waits for all ranks, also for one that has been stopped since the run was over. This ends the process
// where that takes too long, and the launcher then ends the others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace zoetrope::comm::mpi {

class FinaliseLimit {
 public:
  // Seconds in which this process runs; those in which it is itself stopped do not count. `why` is printed then, unless
  // it is empty.
  FinaliseLimit(std::chrono::duration<double> limit, std::string why);
  ~FinaliseLimit();  // MPI_Finalize has returned
  FinaliseLimit(const FinaliseLimit&) = delete;
  FinaliseLimit& operator=(const FinaliseLimit&) = delete;

 private:
  void wait();

  const std::chrono::duration<double> limit_;
  const std::string why_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool finalised_ = false;
  std::thread thread_;
};

}  // namespace zoetrope::comm::mpi
