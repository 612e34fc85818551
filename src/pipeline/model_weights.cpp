#include "pipeline/model_weights.h"

#include "base/error.h"
#include "base/hash.h"
#include "comm/launcher.h"
#include "pipeline/host_sharing.h"
#include "pipeline/weight_ranks.h"

namespace zoetrope::pipeline {
namespace {

// Readable, and another name for every choice of weight and LoRA files, whatever their strengths: trying strengths does
// not fill the disk.
std::string cache_name(const std::filesystem::path& folder, const char* component, const Expert& expert) {
  const std::filesystem::path whole = std::filesystem::weakly_canonical(folder);
  uint64_t hash = fnv1a64(whole.string());
  if (const io::Checkpoint* checkpoint = expert.weights.checkpoint()) {
    for (const auto& file : checkpoint->files())
      hash = fnv1a64(fmt::format(":{}", std::filesystem::weakly_canonical(file->path()).string()), hash);
  }
  for (const lora::Lora& lora : expert.loras) {
    hash = fnv1a64(fmt::format(":{}", std::filesystem::weakly_canonical(lora.file).string()), hash);
  }
  return fmt::format("{}-{}-{}{:08x}", whole.filename().string(), component, expert.loras.empty() ? "" : "lora-",
                     hash & 0xFFFFFFFFu);
}

}  // namespace

std::string weight_cache_name(const ModelFolder& model, int expert) {
  return cache_name(model.folder, expert_name(expert), model.experts[static_cast<size_t>(expert)]);
}

std::shared_ptr<const io::Weights> ExpertWeights::open(int expert) {
  const char* name = expert_name(expert);
  const Expert& files = setup_.model.experts[static_cast<size_t>(expert)];
  SharedExpert& shared = setup_.experts[expert];
  const bool reports = !setup_.every_rank_loads || world_.rank() == 0;
  if (!setup_.weight_cache.empty()) {
    // Of several processes, one writes.
    const auto access = reports ? io::WeightCache::Access::kReadWrite : io::WeightCache::Access::kRead;
    shared.cache =
        std::make_shared<io::WeightCache>(setup_.weight_cache, weight_cache_name(setup_.model, expert), access);
  }
  io::Weights::Loading loading{shared.cache, {}, setup_.weight_memory, {}};
  if (setup_.every_rank_loads && setup_.weight_shards > 1) {
    auto ranks = world_.split(world_.rank() / setup_.weight_shards, world_.rank());
    ranks->set_trace(nullptr);  // they may outlive this run, and a thread of their own waits
    loading.shards = weight_shards(std::move(ranks));
  } else if (setup_.every_rank_loads) {
    loading.sharing = share_host(world_);
  }
  if (reports && setup_.callbacks.load) {
    loading.progress = [load = setup_.callbacks.load, name](int64_t done, int64_t total) { load(name, done, total); };
    loading.progress(0, 0);
  }
  auto weights = std::make_shared<const io::Weights>(files.weights.source(setup_.threads), std::move(loading));
  shared.source = weights;
  return weights;
}

std::shared_ptr<const wan::TransformerWeights> ExpertWeights::load(int expert, const std::function<bool()>& cancelled) {
  world_.set_step("reading weights");
  const auto tick = [&] {
    if (cancelled && cancelled()) fail("interrupted while reading weights; nothing was written");
    // Processes read at different speeds, and a large model takes longer than comm_timeout: they load tensor by tensor
    // together. The ranks of one process wait for the one that reads without a deadline.
    if (setup_.every_rank_loads) world_.barrier();
  };
  SharedOnce<const wan::TransformerWeights>& shared = setup_.experts[expert].weights;
  // Processes that load meet in barriers, so all of them load where one has to.
  if (setup_.every_rank_loads && shared.keeps() && world_.all_reduce_max(shared.known() ? 0 : 1) > 0)
    shared.release_kept();
  const wan::TransformerConfig& config = setup_.model.experts[static_cast<size_t>(expert)].config;
  return shared.get(
      [&] { return wan::TransformerWeights::load(config, open(expert), setup_.dtype, tick, setup_.threads); });
}

void ExpertWeights::require_unchanged(int expert) const {
  for (const Expert& files : setup_.model.experts) {
    if (const io::Checkpoint* checkpoint = files.weights.checkpoint()) checkpoint->require_unchanged();
  }
  if (const io::Checkpoint* files = setup_.model.vae.checkpoint()) files->require_unchanged();
  if (const auto source = setup_.experts[expert].source.lock()) source->require_unchanged();
}

void ExpertWeights::finish_cache(int expert) const {
  if (world_.rank() == 0 && setup_.experts[expert].cache) setup_.experts[expert].cache->finish();
}

void ExpertWeights::report(int expert) const {
  if (world_.rank() != 0 || !setup_.callbacks.note || !setup_.experts[expert].cache) return;
  for (const std::string& note : setup_.experts[expert].cache->take_notes()) setup_.callbacks.note(note);
}

std::shared_ptr<const wan::VaeWeights> load_vae(const Stage& stage, SharedVae& shared, wan::VaeParts part) {
  const trace::Timing::Scope scope(stage.timing, "Load/VAE");
  return shared.get([&] {
    const int threads = comm::process_threads(stage.options.threads);
    auto made = std::make_shared<const wan::VaeWeights>(stage.model.vae_config, *stage.model.vae.source(threads), part,
                                                        stage.options.vae_dtype);
    if (const io::Checkpoint* files = stage.model.vae.checkpoint()) files->require_unchanged();
    return made;
  });
}

}  // namespace zoetrope::pipeline
