#include "io/weight_loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/index_range.h"
#include "io/weight_cache.h"
#include "io/weights_memory.h"

namespace zoetrope::io {
namespace {

constexpr int64_t kAlignment = 64;
// How far pages are prefetched: a few times what a disk delivers within its longest latency.
constexpr int64_t kReadAhead = int64_t{256} << 20;
// Memory of all threads for stored tensors that are not mapped but computed for one weight at a time. Exceeded only
// where a single weight needs more.
constexpr int64_t kMostBuffered = int64_t{512} << 20;

// Of everything besides the values that determines its bytes.
uint64_t hash_of(const PackedWeight& weight) {
  uint64_t hash = fnv1a64(weight.layout);
  for (size_t i = 0; i < weight.names.size(); ++i) {
    hash = fnv1a64(fmt::format("|{} {}", weight.names[i], weight.shapes[i].to_string()), hash);
  }
  return hash;
}

}  // namespace

// The threads of one run(). Each takes the next job, packs it, or verifies it where the cache has it, and adds it to
// `finished_`, which the caller empties. A cached weight that is damaged is packed into memory of its own.
class WeightLoader::Workers {
 public:
  Workers(const WeightSource& source, const std::vector<Job*>& jobs, std::vector<std::byte*>& places,
          const WeightCache::Kept* kept, WeightCache::Made* made, size_t memory)
      : source_(source),
        jobs_(jobs),
        places_(places),
        kept_(kept),
        made_(made),
        streamed_(memory > 0),
        most_buffered_(memory > 0 ? std::min(kMostBuffered, static_cast<int64_t>(memory / 2)) : kMostBuffered) {}

  void start(int threads) {
    const auto count = std::clamp<size_t>(jobs_.size(), 0, static_cast<size_t>(std::max(1, threads)));
    for (size_t i = 0; i < count; ++i) {
      workers_.emplace_back([this] { work(); });
    }
  }
  ~Workers() { stop(); }

  // The next finished job; waits for it. Throws what a worker threw.
  size_t take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ != nullptr || !finished_.empty(); });
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    const size_t job = finished_.back();
    finished_.pop_back();
    return job;
  }

  // Memory of the weights that were damaged, once all jobs are finished.
  std::vector<std::unique_ptr<WeightBuffer>> take_repacked() {
    const std::lock_guard lock(mutex_);
    return std::exchange(repacked_, {});
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    workers_.clear();  // joins
  }

  void work() {
    try {
      for (;;) {
        size_t job = 0, ahead = 0, ahead_end = 0;
        {
          const std::lock_guard lock(mutex_);
          if (stopped_ || failure_ != nullptr || next_ == jobs_.size()) return;
          job = next_++;
          taken_bytes_ += jobs_[job]->stored_bytes;
          ahead = prefetched_ = std::max(prefetched_, next_);
          while (prefetched_ < jobs_.size() && prefetched_bytes_ < taken_bytes_ + kReadAhead) {
            prefetched_bytes_ += jobs_[prefetched_++]->stored_bytes;
          }
          ahead_end = prefetched_;
        }
        if (kept_ == nullptr) {
          for (; ahead < ahead_end; ++ahead) {
            for (const std::string& name : jobs_[ahead]->weight.names) source_.will_need(name);
          }
          pack(*jobs_[job], places_[job]);
          if (made_ != nullptr) made_->finish(job);
        } else if (!kept_->verify(job)) {
          repack(job);
        } else if (streamed_) {
          kept_->release(job);
        }
        {
          const std::lock_guard lock(mutex_);
          finished_.push_back(job);
        }
        changed_.notify_all();
      }
    } catch (...) {
      {
        const std::lock_guard lock(mutex_);
        if (failure_ == nullptr) failure_ = std::current_exception();
      }
      changed_.notify_all();
    }
  }

  void repack(size_t job) {
    std::unique_ptr<WeightBuffer> buffer = WeightBuffer::anonymous(jobs_[job]->weight.bytes);
    places_[job] = buffer->data();
    pack(*jobs_[job], places_[job]);
    const std::lock_guard lock(mutex_);
    repacked_.push_back(std::move(buffer));
  }

  void pack(const Job& job, std::byte* out) {
    const PackedWeight& weight = job.weight;
    std::vector<TensorView> stored(weight.names.size());
    int64_t unmapped = 0;
    for (size_t i = 0; i < stored.size(); ++i) {
      stored[i] = source_.mapped(weight.names[i]);
      if (!stored[i]) unmapped += static_cast<int64_t>(source_.info(weight.names[i]).bytes);
    }
    const Buffered buffered(*this, unmapped);
    std::vector<Tensor> computed;
    for (size_t i = 0; i < stored.size(); ++i) {
      if (stored[i]) continue;
      computed.push_back(Tensor::uninitialized(*source_.info(weight.names[i]).dtype, weight.shapes[i]));
      stored[i] = computed.back();
      source_.read(weight.names[i], stored[i]);
    }
    weight.pack(stored, out);
    for (const std::string& name : weight.names) source_.release(name);
  }

  // Reserves a part of most_buffered_ while it lives.
  class Buffered {
   public:
    Buffered(Workers& pool, int64_t bytes) : pool_(pool), bytes_(bytes) {
      std::unique_lock lock(pool_.mutex_);
      const auto fits = [&] { return pool_.buffered_ == 0 || pool_.buffered_ + bytes_ <= pool_.most_buffered_; };
      pool_.changed_.wait(lock, [&] { return bytes_ == 0 || fits(); });
      pool_.buffered_ += bytes_;
    }
    Buffered(const Buffered&) = delete;
    Buffered& operator=(const Buffered&) = delete;
    ~Buffered() {
      if (bytes_ == 0) return;
      {
        const std::lock_guard lock(pool_.mutex_);
        pool_.buffered_ -= bytes_;
      }
      pool_.changed_.notify_all();
    }

   private:
    Workers& pool_;
    int64_t bytes_;
  };

  const WeightSource& source_;
  const std::vector<Job*>& jobs_;
  std::vector<std::byte*>& places_;  // each belongs to the thread that took its job
  const WeightCache::Kept* kept_;
  WeightCache::Made* made_;
  const bool streamed_;
  const int64_t most_buffered_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopped_ = false;
  std::exception_ptr failure_;
  size_t next_ = 0;        // the next job
  size_t prefetched_ = 0;  // the next job to prefetch
  int64_t taken_bytes_ = 0, prefetched_bytes_ = 0;
  int64_t buffered_ = 0;
  std::vector<size_t> finished_;
  std::vector<std::unique_ptr<WeightBuffer>> repacked_;

  std::vector<std::jthread> workers_;
};

WeightLoader::WeightLoader(std::shared_ptr<const Weights> weights) : weights_(std::move(weights)) {}

void WeightLoader::add(PackedWeight weight, std::function<void(const std::byte*)> placed) {
  ZT_CHECK(!weight.names.empty() && weight.names.size() == weight.shapes.size());
  const WeightSource& source = *weights_->source_;
  Job job{std::move(weight), std::move(placed), 0, {}, 0};
  for (size_t i = 0; i < job.weight.names.size(); ++i) {
    const std::string& name = job.weight.names[i];
    weights_->check(name, job.weight.shapes[i], DType::kF32);
    const TensorInfo info = source.info(name);
    const std::string file = source.where(name);
    if (!is_readable(info)) {
      fail("{}: tensor '{}' is stored as {}, but F32, BF16, F16 or F64 is needed", file, name, info.dtype_name);
    }
    job.stored_bytes += static_cast<int64_t>(info.bytes);
    if (i == 0 || std::tie(file, info.offset) < std::tie(job.file, job.offset)) {
      job.file = file;
      job.offset = info.offset;
    }
  }
  jobs_.push_back(std::move(job));
}

void WeightLoader::run(int threads, const Tick& tick) {
  Weights::Cache& cache = *weights_->cache_;
  const std::lock_guard loading(cache.loading);
  int64_t done = 0, total = 0;
  std::vector<Job*> jobs;
  for (Job& job : jobs_) total += job.stored_bytes;
  const auto placed = [&](const Job& job, const std::byte* at) {
    if (job.placed) job.placed(at);
    done += job.stored_bytes;
    if (weights_->loading_.progress) weights_->loading_.progress(done, total);
    if (tick) tick(done, total);
  };
  for (Job& job : jobs_) {
    const auto known = cache.packed.find({job.weight.names, job.weight.layout});
    if (known == cache.packed.end()) jobs.push_back(&job);
    else placed(job, known->second);
  }
  // Stable: sources without files keep the order in which weights were added.
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) {
    return std::tie(a->file, a->offset) < std::tie(b->file, b->offset);
  });

  // The key of the cache is the identity of the weights, which must be known.
  const WeightSource& source = *weights_->source_;
  WeightCache* disk = jobs.empty() ? nullptr : weights_->loading_.cache.get();
  WeightCache::Contents contents{disk == nullptr ? std::string() : source.identity(), {}, 0};
  if (contents.identity.empty()) disk = nullptr;
  const size_t memory = weights_->loading_.memory;
  ZT_CHECK(memory == 0 || disk != nullptr || jobs.empty(), "weights to be streamed, but no cache to stream from");
  for (const Job* job : jobs) {
    contents.entries.push_back({hash_of(job->weight), contents.bytes, job->weight.bytes});
    contents.bytes += static_cast<uint64_t>(round_up(static_cast<int64_t>(job->weight.bytes), kAlignment));
  }
  std::unique_ptr<WeightCache::Kept> opened = disk == nullptr ? nullptr : disk->open(contents, memory == 0);
  const WeightCache::Kept* kept = opened.get();
  std::unique_ptr<WeightCache::Made> making = kept == nullptr && memory > 0 ? disk->make(contents) : nullptr;
  WeightCache::Made* made = making.get();
  if (const WeightCache::MappedFile* file = kept != nullptr ? static_cast<const WeightCache::MappedFile*>(kept) : made;
      file != nullptr && memory > 0)
    cache.streamed = {file->name(), {file->data(), file->bytes()}};
  std::unique_ptr<WeightBuffer> buffer;
  if (kept != nullptr) buffer = std::move(opened);
  else if (made != nullptr) buffer = std::move(making);
  else buffer = WeightBuffer::anonymous(contents.bytes);
  std::vector<std::byte*> places;
  for (const WeightCache::Entry& entry : contents.entries) places.push_back(buffer->data() + entry.offset);
  std::vector<std::unique_ptr<WeightBuffer>> repacked;
  {
    Workers pool(source, jobs, places, kept, made, memory);
    pool.start(threads);
    for (size_t i = 0; i < jobs.size(); ++i) {
      const size_t job = pool.take();
      placed(*jobs[job], places[job]);
    }
    repacked = pool.take_repacked();
  }
  source.require_unchanged();
  // The contents too: a cache whose values do not match its key would be used as long as it exists.
  if (disk != nullptr && source.identity() != contents.identity) {
    fail("{}: was changed while it was read; start again when it is complete", source.where(jobs[0]->weight.names[0]));
  }
  if (!repacked.empty()) disk->note_damaged(contents);
  if (made != nullptr) made->complete();
  else if (disk != nullptr && (kept == nullptr || !repacked.empty()))
    disk->write(contents, {places.begin(), places.end()});
  for (size_t i = 0; i < jobs.size(); ++i) cache.packed[{jobs[i]->weight.names, jobs[i]->weight.layout}] = places[i];
  cache.buffers.push_back(std::move(buffer));
  std::move(repacked.begin(), repacked.end(), std::back_inserter(cache.buffers));
  jobs_.clear();
  const std::lock_guard lock(cache.mutex);
  cache.bytes += static_cast<size_t>(contents.bytes);
}

}  // namespace zoetrope::io
