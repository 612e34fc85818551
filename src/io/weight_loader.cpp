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
#include "base/index_range.h"
#include "io/hash.h"
#include "io/weight_cache.h"
#include "io/weights_memory.h"

namespace zoetrope::io {
namespace {

constexpr int64_t kAlignment = 64;
// Asked of the system before it is needed: a few times what a disk delivers in the time of its longest answer.
constexpr int64_t kReadAhead = int64_t{256} << 20;
// Of stored tensors that are not mapped and are made up for one form at a time, all threads together. More only where a
// single form needs more.
constexpr int64_t kMostBuffered = int64_t{512} << 20;

// Of everything that its bytes follow from, beside the values.
uint64_t hash_of(const DerivedForm& form) {
  uint64_t hash = fnv1a64(form.form);
  for (size_t i = 0; i < form.names.size(); ++i) {
    hash = fnv1a64(fmt::format("|{} {}", form.names[i], form.shapes[i].to_string()), hash);
  }
  return hash;
}

}  // namespace

// The threads of one run(). Workers take the next job, make it, or verify it where a file holds it, and put it into
// `finished_`, which the caller empties. A kept form that is damaged is made in memory of its own, its place with it.
class WeightLoader::Crew {
 public:
  Crew(const WeightSource& source, const std::vector<Job*>& jobs, std::vector<std::byte*>& places,
       const WeightCache::Kept* kept)
      : source_(source), jobs_(jobs), places_(places), kept_(kept) {}

  void start(int threads) {
    const auto count = std::clamp<size_t>(jobs_.size(), 0, static_cast<size_t>(std::max(1, threads)));
    for (size_t i = 0; i < count; ++i) {
      workers_.emplace_back([this] { work(); });
    }
  }
  ~Crew() { stop(); }

  // The next finished job; waits for it. Throws what a worker threw.
  size_t take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return failure_ != nullptr || !finished_.empty(); });
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    const size_t job = finished_.back();
    finished_.pop_back();
    return job;
  }

  // Memory of the forms that were damaged, when all jobs are taken.
  std::vector<std::unique_ptr<FormBlock>> take_remade() {
    const std::lock_guard lock(mutex_);
    return std::exchange(remade_, {});
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
          ahead = asked_ = std::max(asked_, next_);
          while (asked_ < jobs_.size() && asked_bytes_ < taken_bytes_ + kReadAhead) {
            asked_bytes_ += jobs_[asked_++]->stored_bytes;
          }
          ahead_end = asked_;
        }
        if (kept_ == nullptr) {
          for (; ahead < ahead_end; ++ahead) {
            for (const std::string& name : jobs_[ahead]->form.names) source_.will_need(name);
          }
          make(*jobs_[job], places_[job]);
        } else if (!kept_->verify(job)) {
          remake(job);
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

  void remake(size_t job) {
    std::unique_ptr<FormBlock> block = FormBlock::anonymous(jobs_[job]->form.bytes);
    places_[job] = block->data();
    make(*jobs_[job], places_[job]);
    const std::lock_guard lock(mutex_);
    remade_.push_back(std::move(block));
  }

  void make(const Job& job, std::byte* out) {
    const DerivedForm& form = job.form;
    std::vector<TensorView> stored(form.names.size());
    int64_t unmapped = 0;
    for (size_t i = 0; i < stored.size(); ++i) {
      stored[i] = source_.mapped(form.names[i]);
      if (!stored[i]) unmapped += static_cast<int64_t>(source_.info(form.names[i]).bytes);
    }
    const Buffered buffered(*this, unmapped);
    std::vector<Tensor> made_up;
    for (size_t i = 0; i < stored.size(); ++i) {
      if (stored[i]) continue;
      made_up.push_back(Tensor::uninitialized(*source_.info(form.names[i]).dtype, form.shapes[i]));
      stored[i] = made_up.back();
      source_.read(form.names[i], stored[i]);
    }
    form.make(stored, out);
    for (const std::string& name : form.names) source_.release(name);
  }

  // A part of kMostBuffered for as long as this lives.
  class Buffered {
   public:
    Buffered(Crew& crew, int64_t bytes) : crew_(crew), bytes_(bytes) {
      std::unique_lock lock(crew_.mutex_);
      const auto fits = [&] { return crew_.buffered_ == 0 || crew_.buffered_ + bytes_ <= kMostBuffered; };
      crew_.changed_.wait(lock, [&] { return bytes_ == 0 || fits(); });
      crew_.buffered_ += bytes_;
    }
    Buffered(const Buffered&) = delete;
    Buffered& operator=(const Buffered&) = delete;
    ~Buffered() {
      if (bytes_ == 0) return;
      {
        const std::lock_guard lock(crew_.mutex_);
        crew_.buffered_ -= bytes_;
      }
      crew_.changed_.notify_all();
    }

   private:
    Crew& crew_;
    int64_t bytes_;
  };

  const WeightSource& source_;
  const std::vector<Job*>& jobs_;
  std::vector<std::byte*>& places_;  // each the business of whoever has taken its job
  const WeightCache::Kept* kept_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool stopped_ = false;
  std::exception_ptr failure_;
  size_t next_ = 0;   // job that nobody has taken
  size_t asked_ = 0;  // job whose pages nobody has asked for
  int64_t taken_bytes_ = 0, asked_bytes_ = 0;
  int64_t buffered_ = 0;
  std::vector<size_t> finished_;
  std::vector<std::unique_ptr<FormBlock>> remade_;

  std::vector<std::jthread> workers_;
};

WeightLoader::WeightLoader(std::shared_ptr<const Weights> weights) : weights_(std::move(weights)) {}

void WeightLoader::add(DerivedForm form, std::function<void(const std::byte*)> placed) {
  ZT_CHECK(!form.names.empty() && form.names.size() == form.shapes.size());
  const WeightSource& source = *weights_->source_;
  Job job{std::move(form), std::move(placed), 0, {}, 0};
  for (size_t i = 0; i < job.form.names.size(); ++i) {
    const std::string& name = job.form.names[i];
    weights_->check(name, job.form.shapes[i], DType::kF32);
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
    const auto known = cache.forms.find({job.form.names, job.form.form});
    if (known == cache.forms.end()) jobs.push_back(&job);
    else placed(job, known->second);
  }
  // Stable: sources without places keep the order in which forms were added.
  std::stable_sort(jobs.begin(), jobs.end(), [](const Job* a, const Job* b) {
    return std::tie(a->file, a->offset) < std::tie(b->file, b->offset);
  });

  // Forms are kept on disk by what they are made from, which must be known.
  const WeightSource& source = *weights_->source_;
  WeightCache* disk = jobs.empty() ? nullptr : weights_->loading_.cache.get();
  WeightCache::Contents contents{disk == nullptr ? std::string() : source.identity(), {}, 0};
  if (contents.identity.empty()) disk = nullptr;
  for (const Job* job : jobs) {
    contents.entries.push_back({hash_of(job->form), contents.bytes, job->form.bytes});
    contents.bytes += static_cast<uint64_t>(round_up(static_cast<int64_t>(job->form.bytes), kAlignment));
  }
  std::unique_ptr<WeightCache::Kept> opened = disk == nullptr ? nullptr : disk->open(contents);
  const WeightCache::Kept* kept = opened.get();
  std::unique_ptr<FormBlock> block = std::move(opened);
  if (kept == nullptr) block = FormBlock::anonymous(contents.bytes);
  std::vector<std::byte*> places;
  for (const WeightCache::Entry& entry : contents.entries) places.push_back(block->data() + entry.offset);
  std::vector<std::unique_ptr<FormBlock>> remade;
  {
    Crew crew(source, jobs, places, kept);
    crew.start(threads);
    for (size_t i = 0; i < jobs.size(); ++i) {
      const size_t job = crew.take();
      placed(*jobs[job], places[job]);
    }
    remade = crew.take_remade();
  }
  source.require_unchanged();
  // By their contents too: a cache of other values than its key says would be used for as long as it lies there.
  if (disk != nullptr && source.identity() != contents.identity) {
    fail("{}: was changed while it was read; start again when it is complete", source.where(jobs[0]->form.names[0]));
  }
  if (!remade.empty()) disk->note_damaged(contents);
  if (disk != nullptr && (kept == nullptr || !remade.empty())) disk->write(contents, {places.begin(), places.end()});
  for (size_t i = 0; i < jobs.size(); ++i) cache.forms[{jobs[i]->form.names, jobs[i]->form.form}] = places[i];
  cache.blocks.push_back(std::move(block));
  std::move(remade.begin(), remade.end(), std::back_inserter(cache.blocks));
  jobs_.clear();
  const std::lock_guard lock(cache.mutex);
  cache.bytes += static_cast<size_t>(contents.bytes);
}

}  // namespace zoetrope::io
