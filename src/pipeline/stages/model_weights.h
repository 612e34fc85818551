// The weights of a run's transformer and VAE: from files, from a cache on disk or by formula, loaded once per process.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/model.h"

#include "io/weights/weight_cache.h"
#include "io/weights/weights.h"
#include "models/wan/transformer/transformer.h"
#include "models/wan/vae/vae_weights.h"
#include "parallel/layout.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/ranks/shared_once.h"
#include "pipeline/stages/stage.h"

namespace zoetrope::pipeline {

// One expert, or a part of its layers, as the ranks of one process share it.
struct SharedExpert {
  explicit SharedExpert(bool keeps) : weights(keeps) {}
  SharedOnce<const wan::TransformerWeights> weights;
  // Set by the rank that loads, before the others have the weights.
  std::weak_ptr<const io::Weights> source;
  std::shared_ptr<io::WeightCache> cache;  // null without weight_cache
  size_t memory = 0;                       // as ExpertWeights::Setup::weight_memory
  int shards = 1;                          // processes that keep parts of it for one another
};

// Those of a model. For any rank's thread.
class SharedExperts {
 public:
  // Divided as the ranks of a run divide it; kept parts of another division are given up.
  SharedExpert& of(int expert, wan::TensorPart part);
  void keep(bool keeps);  // before of(): whether they outlive the ranks that use them
  bool known();           // whether any is in memory
  bool allocated();       // whether any is, and is not mapped from a weight cache
  void release_kept();
  void release_shards();  // those that processes keep parts of for one another

 private:
  std::vector<std::shared_ptr<SharedExpert>> all();

  std::mutex mutex_;
  bool keeps_ = false;
  std::map<std::array<int, 3>, std::shared_ptr<SharedExpert>> experts_;  // by expert, parts and part
};

// On one rank.
class ExpertWeights {
 public:
  struct Setup {
    const ModelFolder& model;
    SharedExperts& experts;
    DType dtype;                             // to compute with
    int threads;                             // of this process, to load with
    bool every_rank_loads;                   // ranks are processes: each reads weights of its own
    std::string weight_cache;                // folder; empty: none
    size_t weight_memory;                    // bytes for an expert's packed weights; 0: all
    const parallel::ParallelLayout& layout;  // weight_shards: where every rank loads
    const Callbacks& callbacks;
  };
  ExpertWeights(const Setup& setup, comm::Communicator& world)
      : setup_(setup), world_(world), part_{setup.layout.tensor, setup.layout.tensor_index(world.rank())} {}

  // Collective. Throws Error when `cancelled` says so.
  std::shared_ptr<const wan::TransformerWeights> load(int expert, const std::function<bool()>& cancelled);
  bool have_been_read() const { return read_; }  // by this rank: others took what it read, or what was kept
  // Throws Error where files, or the cache, are not what they were when they were opened.
  void require_unchanged(int expert) const;
  // Collective, before an expert's weights may go: completes its cache on disk. Throws Error when `cancelled` says so;
  // weights that go then stop the writing.
  void finish_cache(int expert, const std::function<bool()>& cancelled) const;
  // Passes the notes of the cache to the callback.
  void report(int expert) const;

 private:
  std::shared_ptr<const io::Weights> open(int expert);
  SharedExpert& shared(int expert) const { return setup_.experts.of(expert, part_); }
  int shards() const { return setup_.every_rank_loads ? setup_.layout.weight_shards : 1; }

  Setup setup_;
  comm::Communicator& world_;
  wan::TensorPart part_;  // that this rank computes with
  bool read_ = false;
};

// Half of the VAE, as the ranks of one process share it: the encoder for conditions, or the decoder for frames.
using SharedVae = SharedOnce<const wan::VaeWeights>;
// Collective over `coders`, the ranks that run it; null: this one alone does. Those of a host that have yet to load it
// keep one copy. Notes the seconds of loading. `tick`: after every weight that this process reads, or every tenth of a
// second while another rank does. Throws Error where files are not what they were when they were opened, and when the
// stage's callback cancels.
std::shared_ptr<const wan::VaeWeights> load_vae(const Stage& stage, comm::Communicator* coders, SharedVae& shared,
                                                wan::VaeParts part, const std::function<void()>& tick = {});

}  // namespace zoetrope::pipeline
