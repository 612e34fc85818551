#include "io/weights/weight_loader.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "base/index_range.h"
#include "io/weights/gather_on_use.h"
#include "io/weights/host_sharing.h"
#include "io/weights/pack_on_use.h"
#include "io/weights/packing_threads.h"
#include "io/weights/weight_cache.h"
#include "io/weights/weight_shards.h"
#include "io/weights/weights_memory.h"

namespace zoetrope::io {
namespace {

constexpr int64_t kAlignment = 64;

// Of everything besides the values that determines its bytes.
uint64_t hash_of(const PackedWeight& weight) {
  uint64_t hash = fnv1a64(weight.layout);
  for (size_t i = 0; i < weight.names.size(); ++i) {
    hash = fnv1a64(fmt::format("|{} {}", weight.names[i], weight.shapes[i].to_string()), hash);
  }
  return hash;
}

// Ranks on unlike CPUs pack for different kernels, and would take each other's bytes for something else.
void require_like_layouts(const std::vector<const PackedWeight*>& weights, WeightShards& shards) {
  std::vector<uint64_t> hashes(static_cast<size_t>(shards.size()));
  uint64_t& own = hashes[static_cast<size_t>(shards.rank())];
  for (const PackedWeight* weight : weights)
    own = fnv1a64(fmt::format("{} {} {}", hash_of(*weight), weight->bytes, weight->part_rows), own);
  std::vector<WeightShards::Piece> pieces;
  for (size_t rank = 0; rank < hashes.size(); ++rank)
    pieces.push_back({static_cast<int>(rank), reinterpret_cast<std::byte*>(&hashes[rank]), sizeof(uint64_t)});
  shards.gather(pieces);
  for (size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] == hashes[0]) continue;
    fail(
        "fsdp_parallelism: of the {} ranks that are to share weights, the first and the {}. pack them for different "
        "CPUs; let like hosts share them, or leave it out",
        hashes.size(), rank + 1);
  }
}

}  // namespace

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
  WeightCache* disk = jobs.empty() ? nullptr : weights_->loading_.cache.get();
  WeightCache::Contents contents{disk == nullptr ? std::string() : weights_->source_->identity(), {}, 0};
  if (contents.identity.empty()) disk = nullptr;
  for (const Job* job : jobs) {
    contents.entries.push_back({hash_of(job->weight), contents.bytes, job->weight.bytes});
    contents.bytes += static_cast<uint64_t>(round_up(static_cast<int64_t>(job->weight.bytes), kAlignment));
  }
  if (weights_->loading_.shards != nullptr && !jobs.empty()) {
    pack_shard(jobs, contents, threads, placed);
  } else if (weights_->loading_.memory > 0 && disk == nullptr && !jobs.empty()) {
    pack_on_use(jobs, contents, threads);
    for (const Job* job : jobs) placed(*job, cache.packed.at({job->weight.names, job->weight.layout}));
  } else {
    pack_all(jobs, contents, disk, threads, placed);
  }
  jobs_.clear();
}

// Where weights are packed, and what is taken from there without packing.
struct WeightLoader::Storage {
  std::unique_ptr<WeightBuffer> buffer;     // of a cache, of the processes of this host, or of this one
  std::unique_ptr<WeightBuffer> used;       // where a stream copies what is in the file; null: all stay where they are
  const WeightCache::Kept* kept = nullptr;  // `buffer`, a cache that holds all of them
  WeightCache::Made* made = nullptr;        // `buffer`, a new cache for a stream
  HostSharing* host = nullptr;              // whose processes pack a share of `buffer` each; null: this one packs all

  const std::byte* place(uint64_t offset) const { return (used != nullptr ? used : buffer)->data() + offset; }
  bool packs(size_t weight) const {
    return host == nullptr || weight % static_cast<size_t>(host->size()) == static_cast<size_t>(host->rank());
  }
};

WeightLoader::Storage WeightLoader::storage_for(const WeightCache::Contents& contents, WeightCache* disk) {
  const size_t memory = weights_->loading_.memory;
  Storage to;
  std::unique_ptr<WeightCache::Kept> kept = disk == nullptr ? nullptr : disk->open(contents, memory == 0);
  HostSharing* const host = memory == 0 && !contents.entries.empty() ? weights_->loading_.sharing.get() : nullptr;
  if (host != nullptr && !host->all(kept != nullptr)) kept.reset();
  const WeightCache::MappedFile* file = nullptr;
  if (kept != nullptr) {
    to.kept = kept.get();
    file = to.kept;
    to.buffer = std::move(kept);
  } else if (memory > 0 && disk != nullptr) {
    std::unique_ptr<WeightCache::Made> made = disk->make(contents);
    to.made = made.get();
    file = to.made;
    to.buffer = std::move(made);
  } else if (host != nullptr) {
    to.buffer = host->allocate(contents.bytes);
    if (to.buffer != nullptr) to.host = host;
  }
  if (to.buffer == nullptr) to.buffer = WeightBuffer::anonymous(contents.bytes);
  if (file != nullptr && memory > 0) {
    to.used = WeightBuffer::reserved(file->bytes());
    weights_->cache_->streamed = {file->name(),
                                  {to.used->data(), file->bytes()},
                                  file_storage(file->name(), file->descriptor(), file->begin(), to.used->data())};
  }
  return to;
}

// In memory, or in the file that a stream reads.
void WeightLoader::pack_all(const std::vector<Job*>& jobs, const WeightCache::Contents& contents, WeightCache* disk,
                            int threads, const Placed& placed) {
  Weights::Cache& cache = *weights_->cache_;
  const WeightSource& source = *weights_->source_;
  const size_t memory = weights_->loading_.memory;
  Storage to = storage_for(contents, disk);
  std::vector<const std::byte*> places(jobs.size()), packed(jobs.size());  // for use, and where they are made
  std::vector<PackingThreads::Job> packing;
  std::vector<size_t> own, others;
  for (size_t i = 0; i < jobs.size(); ++i) {
    std::byte* const at = to.buffer->data() + contents.entries[i].offset;
    packed[i] = at;
    places[i] = to.place(contents.entries[i].offset);
    if (!to.packs(i)) {
      others.push_back(i);
      continue;
    }
    own.push_back(i);
    packing.push_back({&jobs[i]->weight, at, jobs[i]->stored_bytes});
  }
  std::vector<std::unique_ptr<WeightBuffer>> repacked;
  {
    const int64_t buffered = memory > 0 ? std::min(kMostBuffered, static_cast<int64_t>(memory / 2)) : kMostBuffered;
    PackingThreads pool(source, std::move(packing), {to.kept, to.made, memory > 0}, buffered);
    pool.start(threads);
    // What others pack is taken to be as far as what is packed here.
    const int sharers = to.host != nullptr ? to.host->size() : 1;
    auto other = others.begin();
    for (size_t i = 0; i < own.size(); ++i) {
      const size_t job = pool.take(), weight = own[job];
      // A damaged one was packed elsewhere, and stays there.
      if (pool.place(job) != packed[weight]) places[weight] = packed[weight] = pool.place(job);
      placed(*jobs[weight], places[weight]);
      for (int n = 1; n < sharers && other != others.end(); ++n, ++other) placed(*jobs[*other], places[*other]);
    }
    for (; other != others.end(); ++other) placed(*jobs[*other], places[*other]);
    repacked = pool.take_repacked();
  }
  if (to.host != nullptr) to.host->barrier();
  source.require_unchanged();
  // The contents too: a cache whose values do not match its key would be used as long as it exists.
  if (disk != nullptr && source.identity() != contents.identity) {
    fail("{}: was changed while it was read; start again when it is complete", source.where(jobs[0]->weight.names[0]));
  }
  if (!repacked.empty()) disk->note_damaged(contents);
  if (to.made != nullptr) to.made->complete();
  const bool mapped = to.kept != nullptr && memory == 0 && repacked.empty();
  const bool writes = to.made == nullptr && disk != nullptr && (to.kept == nullptr || !repacked.empty());
  for (size_t i = 0; i < jobs.size(); ++i) cache.packed[{jobs[i]->weight.names, jobs[i]->weight.layout}] = places[i];
  cache.buffers.push_back(std::move(to.buffer));
  if (to.used != nullptr) cache.buffers.push_back(std::move(to.used));
  std::move(repacked.begin(), repacked.end(), std::back_inserter(cache.buffers));
  if (writes) disk->write(contents, packed);  // of what the Weights own by now
  const std::lock_guard lock(cache.mutex);
  cache.mapped = mapped;
  cache.bytes += static_cast<size_t>(contents.bytes);
}

// Every weight gets its place, and none is packed yet.
void WeightLoader::pack_on_use(const std::vector<Job*>& jobs, const WeightCache::Contents& contents, int threads) {
  Weights::Cache& cache = *weights_->cache_;
  std::unique_ptr<WeightBuffer> buffer = WeightBuffer::reserved(contents.bytes);
  std::vector<PackOnUse::Weight> weights;
  for (size_t i = 0; i < jobs.size(); ++i) {
    std::byte* const at = buffer->data() + contents.entries[i].offset;
    weights.emplace_back(jobs[i]->weight, at);
    cache.packed[{jobs[i]->weight.names, jobs[i]->weight.layout}] = at;
  }
  cache.streamed = {weights_->source_->where(jobs[0]->weight.names[0]),
                    {buffer->data(), contents.bytes},
                    std::make_shared<PackOnUse>(weights_->source_, std::move(weights), threads)};
  cache.buffers.push_back(std::move(buffer));
}

// Every weight gets its place, and this rank packs its rows of each.
void WeightLoader::pack_shard(const std::vector<Job*>& jobs, const WeightCache::Contents& contents, int threads,
                              const Placed& placed) {
  Weights::Cache& cache = *weights_->cache_;
  const WeightSource& source = *weights_->source_;
  const std::shared_ptr<WeightShards>& shards = weights_->loading_.shards;
  std::vector<const PackedWeight*> all;
  for (const Job* job : jobs) all.push_back(&job->weight);
  require_like_layouts(all, *shards);
  std::unique_ptr<WeightBuffer> buffer = WeightBuffer::reserved(contents.bytes);
  std::vector<GatherOnUse::Weight> weights;
  std::vector<size_t> own;  // where they begin
  size_t own_bytes = 0;
  for (size_t i = 0; i < jobs.size(); ++i) {
    std::byte* const place = buffer->data() + contents.entries[i].offset;
    weights.push_back(GatherOnUse::divide(jobs[i]->weight, i, place, *shards));
    own.push_back(own_bytes);
    own_bytes += static_cast<size_t>(round_up(static_cast<int64_t>(weights.back().own_bytes), kAlignment));
  }
  std::unique_ptr<WeightBuffer> kept = WeightBuffer::anonymous(own_bytes);
  std::vector<PackingThreads::Job> packing;
  for (size_t i = 0; i < jobs.size(); ++i) {
    GatherOnUse::Weight& weight = weights[i];
    weight.own = kept->data() + own[i];
    // Packing writes to the bytes of these rows and to no others.
    std::byte* const whole = weight.own - weight.own_begin;
    packing.push_back({&jobs[i]->weight, whole, jobs[i]->stored_bytes / shards->size(), weight.own_rows});
  }
  {
    PackingThreads pool(source, std::move(packing), {}, kMostBuffered);
    pool.start(threads);
    for (size_t i = 0; i < jobs.size(); ++i) {
      const size_t job = pool.take();
      placed(*jobs[job], weights[job].place);
    }
  }
  source.require_unchanged();
  for (size_t i = 0; i < jobs.size(); ++i)
    cache.packed[{jobs[i]->weight.names, jobs[i]->weight.layout}] = weights[i].place;
  cache.streamed = {source.where(jobs[0]->weight.names[0]),
                    {buffer->data(), contents.bytes},
                    std::make_shared<GatherOnUse>(shards, std::move(weights))};
  cache.buffers.push_back(std::move(buffer));
  cache.buffers.push_back(std::move(kept));
  const std::lock_guard lock(cache.mutex);
  cache.bytes += own_bytes;
}

}  // namespace zoetrope::io
