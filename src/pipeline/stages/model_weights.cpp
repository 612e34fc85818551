#include "pipeline/stages/model_weights.h"

#include <algorithm>
#include <vector>

#include "base/cancel.h"
#include "base/error.h"
#include "comm/launcher.h"
#include "pipeline/model_files/weight_cache_name.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/host_sharing.h"
#include "pipeline/ranks/rank_heartbeat.h"
#include "pipeline/ranks/weight_ranks.h"
#include "pipeline/stages/phases.h"

namespace zoetrope::pipeline {
namespace {

// Of processes that load together: where one has to, all do. Collective.
template <typename T>
void release_unless_all_know(comm::Communicator& ranks, SharedOnce<T>& shared) {
  if (shared.keeps() && !on_every_rank(ranks, shared.known())) shared.release_kept();
}

}  // namespace

SharedExpert& SharedExperts::of(int expert, wan::TensorPart part) {
  const std::lock_guard lock(mutex_);
  std::erase_if(experts_, [&](const auto& entry) { return entry.first[1] != part.parts; });
  std::shared_ptr<SharedExpert>& found = experts_[{expert, part.parts, part.part}];
  if (!found) found = std::make_shared<SharedExpert>(keeps_);
  return *found;
}

void SharedExperts::keep(bool keeps) { keeps_ = keeps; }

// To be asked without the lock: a rank that loads holds its expert, and calls of() meanwhile, which may give others up.
std::vector<std::shared_ptr<SharedExpert>> SharedExperts::all() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<SharedExpert>> found;
  for (const auto& [key, expert] : experts_) found.push_back(expert);
  return found;
}

bool SharedExperts::known() {
  const auto experts = all();
  return std::any_of(experts.begin(), experts.end(), [](const auto& expert) { return expert->weights.known(); });
}

bool SharedExperts::allocated() {
  const auto experts = all();
  return std::any_of(experts.begin(), experts.end(), [](const auto& expert) {
    const auto weights = expert->weights.value();  // held, so that nobody sets the source meanwhile
    const auto source = weights ? expert->source.lock() : nullptr;
    return source != nullptr && !source->lie_in_cache();
  });
}

void SharedExperts::release_kept() {
  for (const auto& expert : all()) expert->weights.release_kept();
}

void SharedExperts::release_shards() {
  for (const auto& expert : all())
    if (expert->shards > 1) expert->weights.release_kept();
}

std::shared_ptr<const io::Weights> ExpertWeights::open(int expert) {
  const char* name = expert_name(expert);
  const Expert& files = setup_.model.experts[static_cast<size_t>(expert)];
  SharedExpert& to = shared(expert);
  const parallel::ParallelLayout& layout = setup_.layout;
  // Of several processes that load the same, one.
  const bool first = !setup_.every_rank_loads || world_.rank() < layout.tensor;
  const bool reports = first && part_.part == 0;
  if (!setup_.weight_cache.empty()) {
    const auto access = first ? io::WeightCache::Access::kReadWrite : io::WeightCache::Access::kRead;
    to.cache = std::make_shared<io::WeightCache>(
        setup_.weight_cache, weight_cache_name(setup_.model, expert, part_.part, part_.parts), access);
  }
  io::Weights::Loading loading{to.cache, {}, setup_.weight_memory, {}};
  to.memory = setup_.weight_memory;
  to.shards = shards();
  if (to.shards > 1) {
    const int place = world_.rank() / layout.tensor;
    auto ranks = world_.split(place / layout.weight_shards * layout.tensor + part_.part, world_.rank());
    ranks->set_trace(nullptr);  // they may outlive this run, and a thread of their own waits
    loading.shards = weight_shards(std::move(ranks));
  } else if (setup_.every_rank_loads) {
    loading.sharing = share_host(*world_.split(part_.part, world_.rank()));
  }
  if (reports && setup_.callbacks.load) {
    loading.progress = [load = setup_.callbacks.load, name](int64_t done, int64_t total) { load(name, done, total); };
    loading.progress(0, 0);
  }
  auto weights = std::make_shared<const io::Weights>(
      wan::TransformerWeights::source_of(files.weights.source(setup_.threads), files.config, part_),
      std::move(loading));
  to.source = weights;
  return weights;
}

std::shared_ptr<const wan::TransformerWeights> ExpertWeights::load(int expert, const std::function<bool()>& cancelled) {
  constexpr const char* kReading = "reading weights";
  world_.set_step(kReading);
  // Also where threads wait for the one that loads, or load again what it could not.
  const auto poll = [&] {
    stop_if_cancelled(cancelled, "while reading weights");
    if (!setup_.every_rank_loads)
      const comm::Work nothing = world_.exchange({}, {}, kReading);  // throws after a failure
  };
  const auto tick = [&] {
    poll();
    // Processes read at different speeds, and a large model takes longer than comm_timeout: they load tensor by tensor
    // together. The ranks of one process wait for the one that reads without a deadline.
    if (setup_.every_rank_loads) world_.barrier();
  };
  SharedExpert& of = shared(expert);
  SharedOnce<const wan::TransformerWeights>& weights = of.weights;
  // Not those of other shards, of more memory than this run may take, of a part where this run has room for all, or
  // of a stream whose read failed.
  weights.release_kept_if([&](const wan::TransformerWeights& kept) {
    const bool all = setup_.weight_memory == 0, all_kept = of.memory == 0;
    return of.shards != shards() || all != all_kept || setup_.weight_memory < of.memory ||
           (kept.stream() != nullptr && kept.stream()->failed());
  });
  // Processes that load meet in barriers.
  if (setup_.every_rank_loads) release_unless_all_know(world_, weights);
  const wan::TransformerConfig& config = setup_.model.experts[static_cast<size_t>(expert)].config;
  // The parts of a process are loaded at the same time.
  const int loading = setup_.every_rank_loads ? 1 : part_.parts, threads = std::max(1, setup_.threads / loading);
  return weights.get(
      [&] {
        auto made = wan::TransformerWeights::load(config, open(expert), setup_.dtype, tick, threads, part_);
        read_ = true;
        return made;
      },
      poll);
}

void ExpertWeights::require_unchanged(int expert) const {
  for (const Expert& files : setup_.model.experts) {
    if (const io::Checkpoint* checkpoint = files.weights.checkpoint()) checkpoint->require_unchanged();
  }
  if (const io::Checkpoint* files = setup_.model.vae.checkpoint()) files->require_unchanged();
  if (const auto source = shared(expert).source.lock()) source->require_unchanged();
}

// A disk takes longer with it than comm_timeout. Each part of the layers has a writer.
void ExpertWeights::finish_cache(int expert, const std::function<bool()>& cancelled) const {
  if (setup_.weight_cache.empty()) return;
  constexpr const char* kWriting = "writing the weight cache";
  world_.set_step(kWriting);
  for (int writer = 0; writer < setup_.layout.tensor; ++writer) {
    // Beats are rank 0's.
    const auto ranks = world_.split(0, (world_.rank() - writer + world_.size()) % world_.size());
    RankHeartbeat heartbeat(*ranks, kWriting);
    // Of processes, one may know of it.
    const auto stop = [&] { stop_if_cancelled(cancelled, "while writing the weight cache"); };
    if (ranks->rank() > 0) {
      heartbeat.wait(stop);
      continue;
    }
    if (const auto& cache = shared(expert).cache) {
      cache->finish([&] {
        stop();
        heartbeat.beat();
      });
    }
    heartbeat.done();
  }
}

void ExpertWeights::report(int expert) const {
  if (world_.rank() != 0 || !setup_.callbacks.note || !shared(expert).cache) return;
  for (const std::string& note : shared(expert).cache->take_notes()) setup_.callbacks.note(note);
}

std::shared_ptr<const wan::VaeWeights> load_vae(const Stage& stage, comm::Communicator* coders, SharedVae& shared,
                                                wan::VaeParts part, const std::function<void()>& tick) {
  const trace::Timing::Scope scope(stage.timing, phases::kLoadVae);
  io::Weights::Loading loading;
  std::unique_ptr<comm::Communicator> loaders;  // where ranks are processes
  if (coders != nullptr && coders->ranks_in_this_process() < coders->size()) {
    release_unless_all_know(*coders, shared);  // none is to keep a copy of its own
    const bool known = shared.known();
    loaders = coders->split(known ? 0 : 1, coders->rank());
    if (known) loaders.reset();
    else loading.sharing = share_host(*loaders);
  }
  const auto poll = [&] {
    stop_if_cancelled(stage.callbacks.cancelled, "while reading the VAE");
    if (tick) tick();
  };
  const auto load = [&] {
    const int threads = comm::process_threads(stage.options.threads);
    const wan::VaeUse use{part, stage.options.vae_dtype, convolution_of(stage.options)};
    auto made = std::make_shared<const wan::VaeWeights>(
        stage.model.vae_config,
        std::make_shared<const io::Weights>(stage.model.vae.source(threads), std::move(loading)), use, threads, [&] {
          poll();
          // Processes read at different speeds: they load tensor by tensor together, as the transformer's do.
          if (loaders != nullptr) loaders->barrier();
        });
    if (const io::Checkpoint* files = stage.model.vae.checkpoint()) files->require_unchanged();
    return made;
  };
  return shared.get(load, poll);
}

}  // namespace zoetrope::pipeline
