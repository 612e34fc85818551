#include "pipeline/planning/what_would_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/index_range.h"
#include "base/words.h"
#include "parallel/layout.h"
#include "parallel/shards.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/segments.h"

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

// `available` is what a process may have.
class FitSearch {
 public:
  FitSearch(const MemoryQuestion& question, Bytes available, const StepSeconds& step_seconds)
      : asked_(question.options), question_(question), available_(available), step_seconds_(step_seconds) {}

  std::vector<std::string> run() {
    std::vector<std::string> found;
    const auto add = [&](const std::optional<std::string>& words) {
      if (words) found.push_back(*words);
    };
    const std::optional<std::string> settings = change_settings();
    // Where no settings are enough, the sizes are looked for with the most frugal ones.
    const MemoryQuestion sized = settings ? question_ : frugal(question_);
    add(settings);
    add(streamed_weights());
    const std::optional<std::string> stored = stored_weights();
    add(stored);
    if (!stored) add(converted_weights());
    add(fewer_frames(sized));
    add(smaller_frames(sized));
    if (found.empty()) add(fewer_and_smaller(sized));
    add(shared_weights());
    add(divided_layers());
    add(more_hosts(sized));
    return found;
  }

 private:
  bool fits(const MemoryQuestion& question) const { return peak(question) <= available_; }
  Bytes peak(const MemoryQuestion& question) const { return peak_memory(as_it_fits(question, available_)); }

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
    if (!seconds) return with_peak(words, peak_memory(question));
    return fmt::format("{} ({}, {} a step)", words, peak_memory(question).text(), duration_text(*seconds));
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
    if (peak_memory(other) > available_) return std::nullopt;
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
      if (other.configs.transformer_file_bytes >= now || peak_memory(other) > available_) continue;
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
      if (peak_memory(other) <= available_) return with_cost(fmt::format("fsdp_parallelism={}", shards), other);
    }
    for (int hosts = 2; hosts <= kMostHosts; hosts *= 2) {
      if (!divides(hosts)) continue;
      other = over_hosts(question_, hosts);
      const int shards = other.layout.weight_shards = hosts / other.layout.tensor;
      if (shards == 1 || peak_memory(other) > available_) continue;
      return with_peak(fmt::format("fsdp_parallelism={}{} over {}", shards, without_weights(other), of_hosts(hosts)),
                       peak_memory(other));
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
      if (peak_memory(other) <= available_)
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

  // Of all settings that can be changed the most frugal ones.
  static MemoryQuestion frugal(MemoryQuestion question) {
    for (const Change& change : kChanges)
      if (change.applies(question.options)) change.apply(question.options);
    return question;
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

  std::optional<std::string> fewer_frames(const MemoryQuestion& sized) const {
    const int64_t step = sized.configs.vae.temporal_factor();
    const FramesKey frames = frames_key(sized);
    const auto with = [&](int64_t steps) {
      MemoryQuestion other = sized;
      other.options.*frames.value = 1 + steps * step;
      return other;
    };
    const int64_t now = (sized.options.*frames.value - 1) / step, fewest = (frames.least - 1) / step;
    const int64_t best = largest(fewest, now - 1, [&](int64_t steps) { return fits(with(steps)); });
    if (best < fewest) return std::nullopt;
    return with_settings(fmt::format("{}={}", frames.name, 1 + best * step), with(best));
  }

  // Multiples of what the model can make, as near to the wanted shape as they come.
  static MemoryQuestion scaled(const MemoryQuestion& sized, int64_t rows) {
    const auto& config = sized.configs.experts.front();
    const int64_t spatial = sized.configs.vae.spatial_factor();
    const int64_t unit_h = spatial * config.patch_size[1], unit_w = spatial * config.patch_size[2];
    MemoryQuestion other = sized;
    other.options.height = rows * unit_h;
    const double width = static_cast<double>(sized.options.width) * static_cast<double>(other.options.height) /
                         static_cast<double>(sized.options.height);
    other.options.width = std::max<int64_t>(1, std::llround(width / static_cast<double>(unit_w))) * unit_w;
    return other;
  }
  // Of `scaled`: every rank that decodes needs a latent row.
  int64_t fewest_rows() const {
    return ceil_div(asked_.vae_parallel.value_or(1), question_.configs.experts.front().patch_size[1]);
  }
  int64_t rows() const {
    return asked_.height / (question_.configs.vae.spatial_factor() * question_.configs.experts.front().patch_size[1]);
  }

  std::optional<std::string> smaller_frames(const MemoryQuestion& sized) const {
    const int64_t best = largest(fewest_rows(), rows() - 1, [&](int64_t count) { return fits(scaled(sized, count)); });
    if (best < fewest_rows()) return std::nullopt;
    const MemoryQuestion other = scaled(sized, best);
    return with_settings(fmt::format("height={} width={}", other.options.height, other.options.width), other);
  }

  std::optional<std::string> fewer_and_smaller(const MemoryQuestion& sized) const {
    const FramesKey frames = frames_key(sized);
    const auto with = [&](int64_t count) {
      MemoryQuestion other = scaled(sized, count);
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
  MemoryQuestion over_hosts(const MemoryQuestion& question, int hosts) const {
    MemoryQuestion other = question;
    other.ranks_here = other.sharers = 1;
    split_context(other.layout, hosts / (question_.layout.data * question_.layout.tensor));
    other.layout.weight_shards = 1;
    other.layout.text_ranks = text_ranks(asked_.strategy.deterministic, hosts);
    other.layout.vae_ranks = static_cast<int>(std::min<int64_t>(asked_.vae_parallel.value_or(hosts), hosts));
    return other;
  }

  std::optional<std::string> more_hosts(const MemoryQuestion& sized) const {
    for (int hosts = 2; hosts <= kMostHosts; hosts *= 2) {
      if (!divides(hosts)) continue;
      const MemoryQuestion other = over_hosts(sized, hosts);
      if (fits(other)) return with_settings(of_hosts(hosts) + without_weights(other), other);
    }
    return std::nullopt;
  }

  const GenerateOptions& asked_;
  const MemoryQuestion& question_;
  const Bytes available_;
  const StepSeconds& step_seconds_;
};

}  // namespace

MemoryQuestion smallest_question(const MemoryQuestion& question) {
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

std::string with_peak(const std::string& words, Bytes peak) { return fmt::format("{} ({})", words, peak.text()); }

std::vector<std::string> what_would_fit(const MemoryQuestion& question, Bytes available,
                                        const StepSeconds& step_seconds) {
  return FitSearch(question, available, step_seconds).run();
}

}  // namespace zoetrope::pipeline
