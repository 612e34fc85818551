#include "pipeline/planning/admission.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/error.h"
#include "base/index_range.h"
#include "base/words.h"
#include "comm/launcher.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/hosts.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/segments.h"
#include "trace/resident.h"

namespace zoetrope::pipeline {
namespace {

using planner::Bytes;

// A change of the options that needs less memory, as a user would write it.
struct Change {
  const char* text;
  bool (*applies)(const GenerateOptions&);
  void (*apply)(GenerateOptions&);
  void (*restore)(const GenerateOptions& from, GenerateOptions& to);
};
constexpr Change kChanges[] = {
    {"keep_weights=none", [](const GenerateOptions& o) { return o.keep_weights != KeepWeights::kNone; },
     [](GenerateOptions& o) { o.keep_weights = KeepWeights::kNone; },
     [](const GenerateOptions& from, GenerateOptions& to) { to.keep_weights = from.keep_weights; }},
    {"batch_size=1", [](const GenerateOptions& o) { return o.batch_size > 1; },
     [](GenerateOptions& o) { o.batch_size = 1; },
     [](const GenerateOptions& from, GenerateOptions& to) { to.batch_size = from.batch_size; }},
    {"dtype=bf16", [](const GenerateOptions& o) { return o.dtype == DType::kF32; },
     [](GenerateOptions& o) { o.dtype = DType::kBF16; },
     [](const GenerateOptions& from, GenerateOptions& to) { to.dtype = from.dtype; }},
    {"text_encoder_dtype=bf16", [](const GenerateOptions& o) { return o.text_encoder_dtype != DType::kBF16; },
     [](GenerateOptions& o) { o.text_encoder_dtype = DType::kBF16; },
     [](const GenerateOptions& from, GenerateOptions& to) { to.text_encoder_dtype = from.text_encoder_dtype; }},
    {"vae_dtype=bf16", [](const GenerateOptions& o) { return o.vae_dtype != DType::kBF16; },
     [](GenerateOptions& o) { o.vae_dtype = DType::kBF16; },
     [](const GenerateOptions& from, GenerateOptions& to) { to.vae_dtype = from.vae_dtype; }},
    {"vae_convolution=direct", [](const GenerateOptions& o) { return o.vae_convolution != VaeConvolution::kDirect; },
     [](GenerateOptions& o) { o.vae_convolution = VaeConvolution::kDirect; },
     [](const GenerateOptions& from, GenerateOptions& to) { to.vae_convolution = from.vae_convolution; }},
    // One rank decodes tiles; a request for more is refused.
    {"vae_tiling=true", [](const GenerateOptions& o) { return !o.vae_tiling && o.vae_parallel.value_or(1) == 1; },
     [](GenerateOptions& o) { o.vae_tiling = true; },
     [](const GenerateOptions& from, GenerateOptions& to) { to.vae_tiling = from.vae_tiling; }},
};
constexpr size_t kSubsets = size_t{1} << std::size(kChanges);

Bytes peak_of(const MemoryQuestion& question) { return memory_plan(question).peak().total(); }

std::string with_peak(const std::string& words, Bytes peak) { return fmt::format("{} ({})", words, peak.text()); }

// Applies the changes of a subset; empty where one of them is no change. Returns their words.
std::optional<std::string> apply_subset(size_t subset, GenerateOptions& options) {
  std::string words;
  for (size_t i = 0; i < std::size(kChanges); ++i) {
    if ((subset >> i & 1) == 0) continue;
    if (!kChanges[i].applies(options)) return std::nullopt;
    kChanges[i].apply(options);
    words += fmt::format("{}{}", words.empty() ? "" : " ", kChanges[i].text);
  }
  return words;
}

// What is denoised together: a whole video, or a segment of Animate's.
struct FramesKey {
  const char* name;
  int64_t GenerateOptions::*value;
  int64_t least;
};
FramesKey frames_key(const MemoryQuestion& question) {
  if (!question.configs.experts.front().animate()) return {"num_frames", &GenerateOptions::num_frames, 1};
  return {"segment_frame_length", &GenerateOptions::segment_frame_length,
          least_segment_frames(question.options.prev_segment_conditioning_frames)};
}

// The least that this model can be asked to do.
MemoryQuestion smallest(const MemoryQuestion& question) {
  MemoryQuestion least = question;
  least.grid_frames = 0;
  for (const Change& change : kChanges) change.apply(least.options);
  const auto& config = question.configs.experts.front();
  const int64_t spatial = question.configs.vae.spatial_factor();
  least.options.height = spatial * config.patch_size[1];
  least.options.width = spatial * config.patch_size[2];
  const FramesKey frames = frames_key(question);
  least.options.*frames.value = frames.least;
  return least;
}

// One search for what fits. `available` is what a process may have.
class Search {
 public:
  Search(const MemoryQuestion& question, Bytes available, const StepSeconds& step_seconds)
      : asked_(question.options), question_(question), available_(available), step_seconds_(step_seconds) {}

  std::vector<std::string> run() {
    std::vector<std::string> found;
    const auto add = [&](const std::optional<std::string>& words) {
      if (words) found.push_back(*words);
    };
    const std::optional<std::string> settings = change_settings();
    add(settings);
    add(streamed_weights());
    const std::optional<std::string> stored = stored_weights();
    add(stored);
    if (!stored) add(converted_weights());
    const std::optional<std::string> shared = shared_weights(), divided = divided_layers();
    // Where no settings are enough, the sizes are looked for with the most frugal ones.
    if (!settings) economise();
    add(fewer_frames());
    add(smaller_frames());
    if (found.empty()) add(fewer_and_smaller());
    add(shared);
    add(divided);
    add(more_hosts());
    return found;
  }

 private:
  bool fits(const MemoryQuestion& question) const { return peak(question) <= available_; }
  Bytes peak(const MemoryQuestion& question) const { return peak_of(as_it_fits(question, available_)); }

  std::optional<std::string> change_settings() const {
    for (int changes = 1; changes <= static_cast<int>(std::size(kChanges)); ++changes) {
      for (size_t subset = 1; subset < kSubsets; ++subset) {
        if (std::popcount(subset) != changes) continue;
        MemoryQuestion other = question_;
        const std::optional<std::string> words = apply_subset(subset, other.options);
        if (words && fits(other)) return with_peak(*words, peak(other));
      }
    }
    return std::nullopt;
  }

  // Where weights are is all that changes, so that the costs can be compared.
  std::string with_cost(const std::string& words, const MemoryQuestion& question) const {
    const std::optional<double> seconds = step_seconds_ ? step_seconds_(question) : std::nullopt;
    if (!seconds) return with_peak(words, peak_of(question));
    return fmt::format("{} ({}, {} a step)", words, peak_of(question).text(), duration_text(*seconds));
  }

  // With weights of its own for every process, and what of the keys must be left out for that.
  std::pair<MemoryQuestion, std::string> without_shards() const {
    MemoryQuestion own = question_;
    own.layout.weight_shards = 1;
    own.options.fsdp_parallelism.reset();
    return {own, asked_.fsdp_parallelism.value_or(1) == 1 ? "" : " fsdp_parallelism=1"};
  }

  std::optional<std::string> streamed_weights() const {
    auto [other, leaving] = without_shards();
    const std::optional<double> gigabytes = largest_weight_memory(other, available_);
    if (!gigabytes) return std::nullopt;
    const bool left_open = asked_.weights_in_memory == WeightsInMemory::kAuto;
    other.options.weights_in_memory = WeightsInMemory::kAuto;
    other.options.weight_memory = gigabytes;
    return with_cost((left_open ? fmt::format("weight_memory={}", *gigabytes) : "weights_in_memory=auto") + leaving,
                     other);
  }

  // As in their files, where these are smaller than what is computed with.
  std::optional<std::string> stored_weights() const {
    if (asked_.weights_in_memory == WeightsInMemory::kAsStored || asked_.weight_memory || !asked_.weight_cache.empty())
      return std::nullopt;
    auto [other, leaving] = without_shards();
    other.options.weights_in_memory = WeightsInMemory::kAsStored;
    if (peak_of(other) > available_) return std::nullopt;
    return with_cost("weights_in_memory=as_stored" + leaving, other);
  }

  // In files that `convert` writes: of the formats with an exact definition, the two that lose least and most.
  // Where weights may be streamed from files, less is enough; it is offered where they may not.
  std::optional<std::string> converted_weights() const {
    if (!question_.configs.mapped || asked_.weight_memory || !asked_.weight_cache.empty()) return std::nullopt;
    for (const io::NumberFormat format : {io::NumberFormat::kQ8_0, io::NumberFormat::kQ4_0}) {
      auto [other, leaving] = without_shards();
      const int64_t now = transformer_file_bytes(other.configs);
      other.configs.transformer_file_bytes = converted_file_bytes(other.configs, io::info_of(format));
      other.options.weights_in_memory = WeightsInMemory::kAsStored;
      if (other.configs.transformer_file_bytes >= now || peak_of(other) > available_) continue;
      return with_cost(fmt::format("zoetrope convert format={} of the transformer{} with weights_in_memory=as_stored{}",
                                   io::info_of(format).word, other.configs.experts.size() > 1 ? "s" : "", leaving),
                       other);
    }
    return std::nullopt;
  }

  // By as few as can of the ranks that there are, if these are processes, or of more, each with a host of its own.
  std::optional<std::string> shared_weights() const {
    if (asked_.weights_in_memory == WeightsInMemory::kAsStored || asked_.weight_memory || !asked_.weight_cache.empty())
      return std::nullopt;
    MemoryQuestion other = question_;
    const int ranks = question_.layout.ranks() / question_.layout.tensor;
    for (int shards = question_.layout.weight_shards + 1; question_.ranks_here == 1 && shards <= ranks; ++shards) {
      if (ranks % shards != 0) continue;
      other.layout.weight_shards = shards;
      if (peak_of(other) <= available_) return with_cost(fmt::format("fsdp_parallelism={}", shards), other);
    }
    for (int hosts = 2; hosts <= kMostHosts; hosts *= 2) {
      if (!divides(hosts)) continue;
      other = over_hosts(hosts);
      const int shards = other.layout.weight_shards = hosts / other.layout.tensor;
      if (shards == 1 || peak_of(other) > available_) continue;
      return with_peak(fmt::format("fsdp_parallelism={}{} over {}", shards, without_weights(other), of_hosts(hosts)),
                       peak_of(other));
    }
    return std::nullopt;
  }

  // Every layer by as few as can of the ranks that there are, if these are processes.
  std::optional<std::string> divided_layers() const {
    if (asked_.data_parallelism.value_or(1) > 1 || asked_.context_parallelism != -1 || asked_.strategy.ulysses_shards ||
        asked_.tensor_parallelism)
      return std::nullopt;  // keys that leave no ranks for it
    const parallel::ParallelLayout& now = question_.layout;
    const int64_t heads = question_.configs.experts.front().num_attention_heads;
    for (const int tensor : parallel::legal_tensor(now.ranks(), heads)) {
      const int places = now.ranks() / tensor;
      if (question_.ranks_here > 1 || tensor <= now.tensor || places % now.weight_shards != 0) continue;
      MemoryQuestion other = question_;
      other.layout.tensor = tensor;
      if (places % now.data != 0) other.layout.data = 1;
      split_context(other.layout, places / other.layout.data);
      if (peak_of(other) <= available_)
        return with_cost(fmt::format("tensor_parallelism={}{}", tensor, without_weights(other)), other);
    }
    return std::nullopt;
  }

  // What of the keys must be left out for a context of other ranks than the list of weights has.
  std::string without_weights(const MemoryQuestion& other) const {
    const std::vector<int>& weights = asked_.strategy.shard_weights.fixed;
    return weights.empty() || std::ssize(weights) == other.layout.context.ranks() ? "" : " shard_weights=even";
  }

  // As few exchanges as can be: Ulysses for as many ranks as have heads.
  void split_context(parallel::ParallelLayout& layout, int ranks) const {
    const int64_t heads = question_.configs.experts.front().num_attention_heads / layout.tensor;
    layout.context.ulysses = parallel::legal_ulysses(ranks, heads).back();
    layout.context.ring = ranks / layout.context.ulysses;
    layout.context.gather = 1;
    if (static_cast<int>(layout.context.shard_weights.size()) != ranks) layout.context.shard_weights.clear();
  }

  // Changes everything that can be: the sizes are looked for among the most frugal runs.
  void economise() {
    for (const Change& change : kChanges)
      if (change.applies(question_.options)) change.apply(question_.options);
  }

  // The way to `found` in words. Of the changed settings those stay, and are named, without which it would not fit.
  std::string with_settings(std::string words, MemoryQuestion found) const {
    for (const Change& change : kChanges) {
      if (!change.applies(asked_) || change.applies(found.options)) continue;
      MemoryQuestion without = found;
      change.restore(asked_, without.options);
      if (fits(without)) found = without;
      else words += fmt::format(" {}", change.text);
    }
    return with_peak(words, peak(found));
  }

  std::optional<std::string> fewer_frames() const {
    const int64_t step = question_.configs.vae.temporal_factor();
    const FramesKey frames = frames_key(question_);
    const auto with = [&](int64_t steps) {
      MemoryQuestion other = question_;
      other.options.*frames.value = 1 + steps * step;
      return other;
    };
    const int64_t now = (question_.options.*frames.value - 1) / step, fewest = (frames.least - 1) / step;
    const int64_t best = largest(fewest, now - 1, [&](int64_t steps) { return fits(with(steps)); });
    if (best < fewest) return std::nullopt;
    return with_settings(fmt::format("{}={}", frames.name, 1 + best * step), with(best));
  }

  // Multiples of what the model can make, as near to the wanted shape as they come.
  MemoryQuestion scaled(int64_t rows) const {
    const auto& config = question_.configs.experts.front();
    const int64_t spatial = question_.configs.vae.spatial_factor();
    const int64_t unit_h = spatial * config.patch_size[1], unit_w = spatial * config.patch_size[2];
    MemoryQuestion other = question_;
    other.options.height = rows * unit_h;
    const double width = static_cast<double>(question_.options.width) * static_cast<double>(other.options.height) /
                         static_cast<double>(question_.options.height);
    other.options.width = std::max<int64_t>(1, std::llround(width / static_cast<double>(unit_w))) * unit_w;
    return other;
  }
  // Of `scaled`: every rank that decodes needs a latent row.
  int64_t fewest_rows() const {
    return ceil_div(asked_.vae_parallel.value_or(1), question_.configs.experts.front().patch_size[1]);
  }
  int64_t rows() const {
    return question_.options.height /
           (question_.configs.vae.spatial_factor() * question_.configs.experts.front().patch_size[1]);
  }

  std::optional<std::string> smaller_frames() const {
    const int64_t best = largest(fewest_rows(), rows() - 1, [&](int64_t count) { return fits(scaled(count)); });
    if (best < fewest_rows()) return std::nullopt;
    const MemoryQuestion other = scaled(best);
    return with_settings(fmt::format("height={} width={}", other.options.height, other.options.width), other);
  }

  std::optional<std::string> fewer_and_smaller() const {
    const FramesKey frames = frames_key(question_);
    const auto with = [&](int64_t count) {
      MemoryQuestion other = scaled(count);
      other.options.*frames.value = frames.least;
      return other;
    };
    const int64_t best = largest(fewest_rows(), rows(), [&](int64_t count) { return fits(with(count)); });
    if (best < fewest_rows()) return std::nullopt;
    const MemoryQuestion other = with(best);
    return with_settings(
        fmt::format("height={} width={} {}={}", other.options.height, other.options.width, frames.name, frames.least),
        other);
  }

  static constexpr int kMostHosts = 64;
  static std::string of_hosts(int hosts) { return fmt::format("{} MPI processes, each on a host of its own", hosts); }

  bool divides(int hosts) const { return hosts % (question_.layout.data * question_.layout.tensor) == 0; }

  // Each rank a process with a host of its own, as many as the parts of the data and of the layers divide: tokens,
  // frames and the text encoder's layers are divided, weights only by tensor ranks.
  MemoryQuestion over_hosts(int hosts) const {
    MemoryQuestion other = question_;
    other.ranks_here = other.sharers = 1;
    split_context(other.layout, hosts / (question_.layout.data * question_.layout.tensor));
    other.layout.weight_shards = 1;
    other.layout.text_ranks = prompt_ranks(asked_.strategy.deterministic, hosts);
    other.layout.vae_ranks = static_cast<int>(std::min<int64_t>(asked_.vae_parallel.value_or(hosts), hosts));
    return other;
  }

  std::optional<std::string> more_hosts() const {
    for (int hosts = 2; hosts <= kMostHosts; hosts *= 2) {
      if (!divides(hosts)) continue;
      const MemoryQuestion other = over_hosts(hosts);
      if (fits(other)) return with_settings(of_hosts(hosts) + without_weights(other), other);
    }
    return std::nullopt;
  }

  const GenerateOptions asked_;
  MemoryQuestion question_;  // with the settings that the sizes are looked for with
  const Bytes available_;
  const StepSeconds& step_seconds_;
};

}  // namespace

std::vector<std::string> what_would_fit(const MemoryQuestion& question, Bytes available,
                                        const StepSeconds& step_seconds) {
  return Search(question, available, step_seconds).run();
}

MemoryQuestion one_rank_question(const MemoryQuestion& run) {
  MemoryQuestion one = run;
  one.layout = {};
  one.ranks_here = one.sharers = 1;
  return one;
}

std::string refusal(const MemoryQuestion& question, const std::vector<planner::MemoryLimit>& limits,
                    const StepSeconds& step_seconds) {
  if (limits.empty()) return {};
  const planner::MemoryLimit& limit = limits.front();
  if (peak_of(as_it_fits(question, limit.available)) <= limit.available) return {};
  const auto words = [](const MemoryQuestion& of) {
    const planner::MemoryPhase peak = memory_plan(of).peak();
    return fmt::format("{} in phase '{}' ({})", peak.total().text(), peak.name, peak.text());
  };
  const MemoryQuestion streamed = with_least_weights(question);
  const bool helps = peak_of(streamed) < peak_of(question);
  std::string text = fmt::format("memory: this run needs {}{}, but {} are available, because of {}; ", words(question),
                                 helps ? ", and with its weights streamed still " + words(streamed) : "",
                                 limit.available.text(), limit.what);
  std::vector<std::string> ways = what_would_fit(question, limit.available, step_seconds);
  if (question.grid_frames > 0) {
    MemoryQuestion without = question;
    without.grid_frames = 0;
    if (const Bytes needed = peak_of(as_it_fits(without, limit.available)); needed <= limit.available)
      ways.insert(ways.begin(), with_peak("no grid, whose frames are kept to the last video", needed));
  }
  if (!ways.empty()) return text + fmt::format("what would fit: {}", fmt::join(ways, ", or "));
  const planner::MemoryPlan least = memory_plan(smallest(question));
  return text + fmt::format("the least that this model needs is {}, in phase '{}'", least.peak().total().text(),
                            least.peak().name);
}

planner::AvailableQuery query_here(int processes, int threads) {
  planner::AvailableQuery query;
  query.processes = processes;
  query.resident = Bytes(trace::resident_bytes());
  query.anonymous = Bytes(trace::anonymous_bytes());
  // The team's, one that writes frames, one that measures.
  query.threads_to_come = threads + 1;
  query.address_space = Bytes(trace::virtual_bytes());
  return query;
}

std::vector<planner::MemoryLimit> limits_here(const MemoryQuestion& question, int processes_here) {
  planner::AvailableQuery query = query_here(processes_here, comm::process_threads(question.options.threads));
  query.user_limit = question.options.memory_limit;
  return planner::memory_limits(query);
}

void admit(const MemoryQuestion& question, comm::Communicator& world, const StepSeconds& step_seconds) {
  const std::vector<planner::MemoryLimit> limits = limits_here(question, processes_on_this_host(world));
  fail_together(world, refusal(question, limits, step_seconds), "admission");
}

}  // namespace zoetrope::pipeline
