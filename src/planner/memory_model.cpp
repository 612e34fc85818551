#include "planner/memory_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "parallel/program.h"

namespace zoetrope::planner {
namespace {

constexpr int64_t kFloat = 4;
constexpr int64_t kLineFloats = 16;  // a row of the state begins on a cache line

// o, l and m of every row, float32.
Bytes running_state(const parallel::Sizes& sizes, int64_t queries, int64_t heads) {
  const int64_t row = (sizes.head_dim + kLineFloats - 1) / kLineFloats * kLineFloats + 2;
  return Bytes(sizes.batch * heads) * queries * (row * kFloat);
}

// How many ranks of this process take part if `sharers` of all ranks do.
int64_t taking_part(const Workload& w, int sharers) { return std::clamp(w.ranks_here, 1, std::max(1, sharers)); }

class Builder {
 public:
  explicit Builder(const Workload& workload) : w_(workload), ranks_(workload.ranks_here) {}

  MemoryPlan build() {
    text_encoder();
    conditions();
    for (const Workload::Expert& expert : w_.experts) denoising(expert);
    decoding();
    return std::move(plan_);
  }

 private:
  // Segments of the run that are denoised and decoded when a phase ends.
  struct Done {
    int64_t denoised = 0, decoded = 0;
  };
  // Before and while the last one is denoised, and when it is decoded: then a phase holds the most.
  Done before_last() const { return {w_.segments - 1, w_.segments - 1}; }
  Done last_denoised() const { return {w_.segments, w_.segments - 1}; }
  Done last_decoded() const { return {w_.segments, w_.segments}; }

  // Starts a phase with the items of all phases. `used`: the weights that the phase itself counts.
  void phase(std::string name, const char* component, const WeightBytes* used, Done done) {
    plan_.phases.push_back({std::move(name), component, {}});
    add("program", w_.program);
    add("latents and prompt", w_.per_rank * ranks_);
    add("pictures and videos", w_.inputs);
    add("weights kept between runs", kept_besides(used, w_.segments > 1 && done.denoised > 0));
    add("steps kept for the dump", w_.kept.steps * done.denoised);
    add("frames kept", w_.kept.frames * done.decoded);
    if (done.decoded > 0) add("video encoder", w_.vae.video_encoder);
  }

  Bytes kept_besides(const WeightBytes* used, bool between_segments) const {
    Bytes sum;
    const auto keep = [&](const WeightBytes& weights) {
      if (&weights != used) sum += weights.resident;
    };
    if (w_.keeps_transformer || between_segments)
      for (const Workload::Expert& expert : w_.experts) keep(expert.weights);
    if (!w_.keeps_vae) return sum;
    keep(w_.vae.weights);
    if (used != &w_.conditions.weights) sum += w_.kept_vae_encoder;
    return sum;
  }
  void add(const char* name, Bytes bytes) {
    if (bytes > Bytes()) plan_.phases.back().items.push_back({name, bytes});
  }

  void text_encoder() {
    phase("text encoder", kTextEncoder, nullptr, {});
    add(kWeightMemory, w_.text.weights.resident);
    add(kLayersReadMemory, w_.text.weights.in_flight * taking_part(w_, w_.layout.text_ranks));
    add(kActivationMemory, w_.text.workspace * taking_part(w_, w_.layout.text_ranks));
  }

  void conditions() {
    const Workload::Conditions& c = w_.conditions;
    if (c.image_workspace > Bytes()) {
      phase("image encoder", kConditions, nullptr, {});
      add(kWeightMemory, c.image_weights.resident);
      add(kLayersReadMemory, c.image_weights.in_flight);
      add(kActivationMemory, c.image_workspace);
    }
    if (c.workspace == Bytes()) return;
    phase("load VAE encoder", kConditions, &c.weights, before_last());
    add(kWeightMemory, c.weights.resident);
    add(kPackingMemory, c.weights.in_flight);
    phase("encode conditions", kConditions, &c.weights, before_last());
    add(kWeightMemory, c.weights.resident);
    add(kFrameMemory, c.workspace * taking_part(w_, w_.layout.vae_ranks));
    add("latents being encoded", c.making * ranks_);
    add("conditions", c.made * ranks_);
  }

  void denoising(const Workload::Expert& expert) {
    // Allocated before the weights are read. Attention buffers become resident in the first step, those of the velocity
    // at once.
    const bool second = &expert != &w_.experts.front();
    const Bytes attention = attention_of_ranks();
    const auto common = [&](const std::string& name) {
      phase(name, kTransformer, &expert.weights, second ? last_denoised() : before_last());
      add(kWeightMemory, expert.weights.resident);
      add("conditions", w_.conditions.made * ranks_);
      add("velocity", w_.step * ranks_);
      if (second) add(kAttentionMemory, attention);
      if (second) add("kernel scratch", w_.kernel_scratch * ranks_);
      if (second) add("decoder of previews", w_.vae.preview);
    };
    common("load " + expert.name);
    add(kPackingMemory, expert.weights.in_flight);
    const Bytes context = expert.context * std::min<int64_t>(int64_t{w_.layout.data} * w_.layout.tensor, ranks_);
    common("prompt of " + expert.name);
    add(kContextMemory, context);
    add("workspace of prompt keys and values", expert.context_making * ranks_);
    phase("denoise with " + expert.name, kTransformer, &expert.weights, last_denoised());
    add(kWeightMemory, expert.weights.resident);
    add("conditions", w_.conditions.made * ranks_);
    add("velocity", w_.step * ranks_);
    add(kContextMemory, context);
    add(kActivationMemory, expert.workspace * ranks_);
    add(kAttentionMemory, attention);
    add("kernel scratch", w_.kernel_scratch * ranks_);
    add("decoder of previews", w_.vae.preview);
  }

  // For all ranks of the process that needs the most, which is the first one with even shards. All data coordinates
  // are alike, and all tensor coordinates.
  Bytes attention_of_ranks() const {
    const parallel::ContextLayout layout = w_.layout.of_sequence();
    const int processes = layout.shard_weights.empty() ? 1 : std::max(1, w_.layout.ranks() / w_.ranks_here);
    std::map<int, Bytes> of_context_rank;
    Bytes most;
    for (int process = 0; process < processes; ++process) {
      Bytes bytes;
      for (int rank = process * w_.ranks_here; rank < (process + 1) * w_.ranks_here; ++rank) {
        const int index = rank / w_.layout.tensor % layout.ranks();
        const auto [known, first] = of_context_rank.try_emplace(index);
        if (first) known->second = attention_workspace(w_.attention, layout, w_.softmax, index);
        bytes += known->second;
      }
      most = std::max(most, bytes);
    }
    return most;
  }

  void decoding() {
    phase("load VAE", kVae, &w_.vae.weights, last_denoised());
    add(kWeightMemory, w_.vae.weights.resident);
    add(kPackingMemory, w_.vae.weights.in_flight);
    phase("VAE decode", kVae, &w_.vae.weights, last_decoded());
    add(kWeightMemory, w_.vae.weights.resident);
    add(kFrameMemory, w_.vae.workspace * taking_part(w_, w_.layout.vae_ranks));
    add("frames waiting for the file", w_.vae.output);
  }

  const Workload& w_;
  int64_t ranks_;
  MemoryPlan plan_;
};

}  // namespace

Bytes MemoryPhase::total() const {
  Bytes sum;
  for (const MemoryItem& item : items) sum += item.bytes;
  return sum;
}

// Items of less than a hundredth are added up.
std::string MemoryPhase::text() const {
  std::string text;
  const Bytes all = total();
  Bytes rest;
  for (const MemoryItem& item : items) {
    if (item.bytes * 100 < all) rest += item.bytes;
    else text += fmt::format("{}{} {}", text.empty() ? "" : ", ", item.name, item.bytes.text());
  }
  return rest > Bytes() ? text + fmt::format(", other {}", rest.text()) : text;
}

const MemoryPhase& MemoryPlan::peak() const {
  ZT_CHECK(!phases.empty());
  return *std::max_element(phases.begin(), phases.end(),
                           [](const MemoryPhase& a, const MemoryPhase& b) { return a.total() < b.total(); });
}

Bytes MemoryPlan::peak_of(const std::string& component) const {
  Bytes most;
  for (const MemoryPhase& phase : phases)
    if (phase.component == component) most = std::max(most, phase.total());
  return most;
}

MemoryPlan memory_model(const Workload& workload) {
  MemoryPlan plan = Builder(workload).build();
  for (MemoryPhase& phase : plan.phases) {
    std::stable_sort(phase.items.begin(), phase.items.end(),
                     [](const MemoryItem& a, const MemoryItem& b) { return a.bytes > b.bytes; });
  }
  return plan;
}

Bytes attention_workspace(const parallel::Sizes& sizes, const parallel::ContextLayout& layout,
                          parallel::Softmax softmax, int rank) {
  const parallel::AttentionProgram program = attention_program(sizes, layout, softmax, rank);
  Bytes bytes;
  for (const int64_t buffer : program.buffers) bytes += Bytes(buffer);
  if (layout.ring > 1)
    for (const parallel::ChunkBuffers& chunk : program.chunks)
      bytes += running_state(sizes, program.block.size(), chunk.heads.size());
  return bytes;
}

std::string Bytes::text() const {
  const double gb = gigabytes();
  if (gb >= 10) return fmt::format("{:.1f} GB", gb);
  return gb >= 0.1 ? fmt::format("{:.2f} GB", gb) : fmt::format("{:.1f} MB", gb * 1e3);
}

}  // namespace zoetrope::planner
