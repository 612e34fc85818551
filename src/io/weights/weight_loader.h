// Packs the weights that a model computes with from its stored tensors, at memory speed: in file order, on many
// threads, without a second copy of the model. The Weights own the results. Small tensors that are used as stored need
// no loader: Weights::get.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "io/weights/weight_cache.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

class WeightLoader {
 public:
  explicit WeightLoader(std::shared_ptr<const Weights> weights);

  // `placed` gets the address of the packed weight (64-byte aligned, valid as long as the Weights, read-only), on the
  // thread that calls run(). A missing tensor or another shape is an Error here, as in Weights::get. What these Weights
  // packed before is not packed again.
  void add(PackedWeight weight, std::function<void(const std::byte*)> placed);

  // Packs what was added on `threads` threads while the caller waits. Pages are prefetched and released after use. With
  // memory for a part of the weights and no cache, nothing is packed before a stream of the Weights does; with shards,
  // this rank's rows are. `tick(done, total)`, in bytes of stored tensors, is called once per weight on the calling
  // thread. When it throws, or a weight cannot be packed, the threads stop and the exception is passed on; the
  // addresses given so far are invalid then.
  using Tick = std::function<void(int64_t done_bytes, int64_t total_bytes)>;
  void run(int threads, const Tick& tick = {});

 private:
  struct Job {
    PackedWeight weight;
    std::function<void(const std::byte*)> placed;
    int64_t stored_bytes;
    std::string file;  // with `offset`: where its first tensor is stored
    uint64_t offset;
  };
  struct Storage;
  using Placed = std::function<void(const Job&, const std::byte*)>;
  Storage storage_for(const WeightCache::Contents& contents, WeightCache* disk);
  void pack_all(const std::vector<Job*>& jobs, const WeightCache::Contents& contents, WeightCache* disk, int threads,
                const Placed& placed);
  void pack_on_use(const std::vector<Job*>& jobs, const WeightCache::Contents& contents, int threads);
  void pack_shard(const std::vector<Job*>& jobs, const WeightCache::Contents& contents, int threads,
                  const Placed& placed);

  std::shared_ptr<const Weights> weights_;
  std::vector<Job> jobs_;
};

}  // namespace zoetrope::io
