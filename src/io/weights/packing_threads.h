// Threads that pack weights, a piece of rows at a time: stored tensors that are not used in place are decoded into
// memory that stays in cache, and a weight is packed by as many threads as there are. For WeightLoader and PackOnUse.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/index_range.h"
#include "io/weights/weight_buffer.h"
#include "io/weights/weight_cache.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

// Elements of a piece, which as float32 stay in a core's L2 cache with what they become.
inline constexpr int64_t kPieceElements = int64_t{128} << 10;
// Bytes, of all threads, for tensors that can only be read as a whole and are not mapped; more only where one weight
// needs it.
inline constexpr int64_t kMostBuffered = int64_t{512} << 20;

class PackingThreads {
 public:
  struct Job {
    const PackedWeight* weight;
    std::byte* place;                     // of the result
    int64_t stored_bytes;                 // of its tensors
    std::optional<IndexRange> rows = {};  // of all tensors joined; unset: all
  };
  // Where the results lie, if not in plain memory: the n-th entry is the n-th job's.
  struct OnDisk {
    const WeightCache::Kept* kept = nullptr;  // there already: they are verified, and packed again where damaged
    WeightCache::Made* made = nullptr;        // written to
    bool release = false;                     // what is verified is not to stay in memory
  };

  // `buffered`: as kMostBuffered, or less.
  PackingThreads(const WeightSource& source, std::vector<Job> jobs, const OnDisk& disk, int64_t buffered);
  PackingThreads(const PackingThreads&) = delete;
  PackingThreads& operator=(const PackingThreads&) = delete;
  ~PackingThreads();  // stops and joins

  void start(int threads);
  // The next finished job; waits for it. Throws what a thread threw.
  size_t take();
  std::byte* place(size_t job) const { return jobs_[job].place; }  // of a finished one
  // Memory of the weights that were damaged, once all jobs are finished.
  std::vector<std::unique_ptr<WeightBuffer>> take_repacked();

 private:
  // A job in `count` pieces of `rows` rows.
  struct Pieces {
    int64_t rows, count;
    IndexRange all;
    bool whole;  // one piece, for which tensors are read as a whole
    IndexRange operator[](int64_t piece) const {
      return {all.begin + piece * rows, piece + 1 == count ? all.end : all.begin + (piece + 1) * rows};
    }
  };
  struct Taken {
    size_t job;
    int64_t piece;
    size_t ahead, ahead_end;  // jobs to prefetch
  };
  class Buffered;
  class Scratch;

  Pieces pieces_of(const Job& job) const;
  void work();
  bool take_piece(Taken& taken);
  bool finish_piece(size_t job);
  void repack(size_t job, Scratch& scratch);
  void pack_piece(const PackedWeight& weight, IndexRange rows, std::byte* out, Scratch& scratch) const;
  void pack_whole(const PackedWeight& weight, IndexRange rows, std::byte* out);
  void pack(size_t job, int64_t piece, Scratch& scratch);
  void release(const PackedWeight& weight) const;

  const WeightSource& source_;
  std::vector<Job> jobs_;  // a job's place belongs to the thread that repacks it
  std::vector<Pieces> pieces_;
  const OnDisk disk_;
  const int64_t most_buffered_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopped_ = false;
  std::exception_ptr failure_;
  size_t next_ = 0;  // the next job
  int64_t next_piece_ = 0;
  std::vector<int64_t> left_;  // pieces of a job that are not finished
  size_t prefetched_ = 0;      // the next job to prefetch
  int64_t taken_bytes_ = 0, prefetched_bytes_ = 0;
  int64_t buffered_ = 0;
  std::vector<size_t> finished_;
  std::vector<std::unique_ptr<WeightBuffer>> repacked_;

  std::vector<std::jthread> threads_;
};

}  // namespace zoetrope::io
