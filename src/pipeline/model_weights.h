// The weights of a run's transformer and VAE: from files, from a cache on disk or by formula, loaded once per process.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "zoetrope/communicator.h"
#include "zoetrope/model.h"

#include "io/weight_cache.h"
#include "io/weights.h"
#include "models/wan/transformer/transformer.h"
#include "models/wan/vae/vae_weights.h"
#include "pipeline/model_folder.h"
#include "pipeline/shared_once.h"
#include "pipeline/stage.h"

namespace zoetrope::pipeline {

inline const char* expert_name(int expert) { return expert == 0 ? "transformer" : "transformer_2"; }

// What names of files in weight_cache begin with.
std::string weight_cache_name(const ModelFolder& model, int expert);

// One expert, as the ranks of one process share it.
struct SharedExpert {
  SharedOnce<const wan::TransformerWeights> weights;
  // Set by the rank that loads, before the others have the weights.
  std::weak_ptr<const io::Weights> source;
  std::shared_ptr<io::WeightCache> cache;  // null without weight_cache
};

// On one rank.
class ExpertWeights {
 public:
  struct Setup {
    const ModelFolder& model;
    SharedExpert* experts;     // [2]
    DType dtype;               // to compute with
    int threads;               // of this process, to load with
    bool every_rank_loads;     // ranks are processes: each reads weights of its own
    std::string weight_cache;  // folder; empty: none
    size_t weight_memory;      // bytes for an expert's packed weights; 0: all
    int weight_shards;         // neighbours that share them, where every rank loads
    const Callbacks& callbacks;
  };
  ExpertWeights(const Setup& setup, comm::Communicator& world) : setup_(setup), world_(world) {}

  // Collective. Throws Error when `cancelled` says so.
  std::shared_ptr<const wan::TransformerWeights> load(int expert, const std::function<bool()>& cancelled);
  // Throws Error where files, or the cache, are not what they were when they were opened.
  void require_unchanged(int expert) const;
  // After an expert's last use in a run: completes its cache on disk.
  void finish_cache(int expert) const;
  // Passes the notes of the cache to the callback.
  void report(int expert) const;

 private:
  std::shared_ptr<const io::Weights> open(int expert);

  Setup setup_;
  comm::Communicator& world_;
};

// Half of the VAE, as the ranks of one process share it: the encoder for conditions, or the decoder for frames.
using SharedVae = SharedOnce<const wan::VaeWeights>;
// Notes the seconds of loading. Throws Error where files are not what they were when they were opened.
std::shared_ptr<const wan::VaeWeights> load_vae(const Stage& stage, SharedVae& shared, wan::VaeParts part);

}  // namespace zoetrope::pipeline
