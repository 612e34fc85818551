#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "plan_report/plan_report.h"

namespace zoetrope::plan_report {
namespace {

using parallel::Direction;
using planner::Candidate;

// The split of one run.
struct Split {
  int data, ulysses, ring, gather, tensor;
  int64_t heads, tokens;  // heads of a tensor rank

  int context() const { return ulysses * ring * gather; }
  int ranks() const { return data * context() * tensor; }
  bool uneven_heads() const { return heads % ulysses != 0; }
  bool uneven_tokens() const { return tokens % context() != 0; }
};

std::string uneven_heads(const Split& split) {
  return fmt::format("{} heads are not a multiple of {} Ulysses ranks", split.heads, split.ulysses);
}

OtherSystem diffusers(const Split& split) {
  OtherSystem system{"diffusers", "", ""};
  const bool one_way = split.ulysses == 1 || split.ring == 1;
  if (split.data > 1) {
    system.note = "it does not split the guidance branches";
  } else if (split.tensor > 1) {
    system.note = "its ContextParallelConfig divides the sequence alone";
  } else if (split.ranks() == 1) {
    system.flags = "one process, without enable_parallelism";
  } else if (split.uneven_heads() && split.ring > 1) {
    system.note = uneven_heads(split) + ", which it supports only without a ring";
  } else if (split.uneven_tokens() && !one_way) {
    system.note =
        fmt::format("{} tokens are not a multiple of {} ranks, which it supports only with Ulysses or a ring alone",
                    split.tokens, split.context());
  } else {
    const bool uneven = split.uneven_heads() || split.uneven_tokens();
    system.flags = fmt::format(
        "torchrun --nproc-per-node={}; transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree={}, "
        "ring_degree={}{}))",
        split.ranks(), split.ulysses, split.ring * split.gather,
        !uneven             ? ""
        : split.ulysses > 1 ? ", ulysses_anything=True"
                            : ", ring_anything=True");
    if (split.gather > 1) system.note = "its ring gathers keys and values, and attends them in blocks";
  }
  return system;
}

constexpr const char* kNoGather = "it has no strategy that gathers keys and values";

OtherSystem xdit(const Split& split, int vae, bool pictures) {
  OtherSystem system{"xDiT", "", ""};
  if (split.data > 1 && !pictures) {
    system.note = "it splits the guidance branches only of Wan's image-to-video models";
  } else if (split.tensor > 1) {
    system.note = "it does not divide the layers of Wan's models";
  } else if (split.gather > 1) {
    system.note = kNoGather;
  } else if (split.uneven_heads()) {
    system.note = uneven_heads(split);
  } else {
    system.flags = fmt::format("torchrun --nproc_per_node={} xfuser/runner.py --ulysses_degree {} --ring_degree {}{}{}",
                               split.ranks(), split.ulysses, split.ring, split.data > 1 ? " --use_cfg_parallel" : "",
                               vae > 1 ? " --use_parallel_vae" : "");
  }
  return system;
}

OtherSystem sglang(const Split& split) {
  OtherSystem system{"SGLang", "", ""};
  if (split.gather > 1) {
    system.note = kNoGather;
  } else if (split.uneven_heads()) {
    system.note = uneven_heads(split);
  } else {
    system.flags = fmt::format("--num-gpus {} --ulysses-degree {} --ring-degree {}{}{}", split.ranks(), split.ulysses,
                               split.ring, split.tensor > 1 ? fmt::format(" --tp-size {}", split.tensor) : "",
                               split.data > 1 ? " --enable-cfg-parallel" : "");
  }
  return system;
}

// The attention name for more than one rank.
std::string maxdiffusion_attention(const Split& split, Direction direction, bool fixed_max) {
  if (split.gather > 1) return "flash";
  if (direction == Direction::kOpen) return "ulysses_ring_custom_bidir";
  if (split.ring == 1) return fixed_max ? "ulysses_custom_fixed_m" : "ulysses";
  if (fixed_max) return "ulysses_ring_custom_fixed_m";
  return split.ulysses == 1 ? "tokamax_ring" : "ulysses_ring";
}

OtherSystem maxdiffusion(const Split& split, const planner::Configuration& configuration, int64_t videos) {
  OtherSystem system{"MaxDiffusion", "", ""};
  if (split.uneven_heads()) {
    system.note = uneven_heads(split);
    return system;
  }
  const parallel::ContextLayout& context = configuration.layout.context;
  const bool fixed_max = configuration.softmax == parallel::Softmax::kFixedMax;
  const std::string attention =
      split.context() == 1 ? "flash" : maxdiffusion_attention(split, context.direction, fixed_max);
  system.flags = fmt::format(
      "attention={} ici_data_parallelism={} ici_fsdp_parallelism=1 ici_context_parallelism={} "
      "ici_tensor_parallelism={} per_device_batch_size={}",
      attention, split.data, split.context(), split.tensor, static_cast<double>(videos) / split.ranks());
  if (attention.starts_with("ulysses_ring")) system.flags += fmt::format(" ulysses_shards={}", split.ulysses);
  if (context.head_chunks > 1) system.flags += fmt::format(" ulysses_attention_chunks={}", context.head_chunks);
  if (fixed_max && !attention.ends_with("fixed_m")) system.note = "with online softmax";
  if (goes_both_ways(context.direction) && context.direction != Direction::kOpen)
    system.note = "its ring goes one way round";
  return system;
}

}  // namespace

std::vector<std::string> settings_of(const Candidate& candidate, const pipeline::GenerateOptions& run) {
  const parallel::ParallelLayout& layout = candidate.configuration.layout;
  const parallel::ContextLayout& context = layout.context;
  std::vector<std::string> settings{
      fmt::format("ranks={}", candidate.ranks()), fmt::format("data_parallelism={}", layout.data),
      context.gather > 1 ? "attention=gather" : fmt::format("ulysses_shards={}", context.ulysses)};
  if (context.ulysses > 1) settings.push_back(fmt::format("ulysses_attention_chunks={}", context.head_chunks));
  if (context.ring > 1) settings.push_back(fmt::format("ring_direction={}", direction_name(context.direction)));
  settings.push_back(fmt::format("softmax={}", softmax_name(candidate.configuration.softmax)));
  const int64_t block_q = candidate.configuration.block_q, block_kv = candidate.configuration.block_kv;
  std::vector<std::string> tiles;
  if (block_q > 0) tiles.push_back(fmt::format("block_q: {}", block_q));
  if (block_kv > 0) tiles.push_back(fmt::format("block_kv: {}", block_kv));
  if (!tiles.empty()) settings.push_back(fmt::format("flash_block_sizes={{{}}}", fmt::join(tiles, ", ")));
  settings.push_back(fmt::format("vae_parallel={}", layout.vae_ranks));
  if (layout.tensor > 1) settings.push_back(fmt::format("tensor_parallelism={}", layout.tensor));
  if (layout.weight_shards > 1) settings.push_back(fmt::format("fsdp_parallelism={}", layout.weight_shards));
  if (run.strategy.kv_exchange_dtype != parallel::KVExchange::kAsComputed)
    settings.push_back(fmt::format("kv_exchange_dtype={}", kv_exchange_name(run.strategy.kv_exchange_dtype)));
  if (run.dtype == DType::kI8) {
    settings.emplace_back("dtype=int8");
    settings.push_back(fmt::format("int8_layers={}", run.int8_layers));
  }
  if (pipeline::spends_measured_errors(run)) {
    if (run.budget) settings.push_back(fmt::format("budget={}", *run.budget));
    if (!run.int8_calibration.empty()) settings.push_back("int8_calibration=" + run.int8_calibration);
  }
  if (run.strategy.attention_dtype == attention::AttentionDtype::kInt8) settings.emplace_back("attention_dtype=int8");
  if (run.strategy.attention_int8_limit)
    settings.push_back(fmt::format("attention_int8_limit={}", *run.strategy.attention_int8_limit));
  const attention::ShardWeights& weights = run.strategy.shard_weights;
  if (weights.automatic) settings.emplace_back("shard_weights=auto");
  if (!weights.fixed.empty()) settings.push_back(fmt::format("shard_weights={}", fmt::join(weights.fixed, ",")));
  if (run.layers) settings.push_back(fmt::format("layers={}", *run.layers));
  if (run.batch_size > 1) {
    // A batch needs as many videos; prompts are lines of a file that the line for the shell leaves to the user.
    if (run.prompts.empty()) settings.push_back(fmt::format("num_videos={}", std::max(run.num_videos, run.batch_size)));
    settings.push_back(fmt::format("batch_size={}", run.batch_size));
  }
  return settings;
}

std::string settings_text(const std::vector<std::string>& settings) {
  std::vector<std::string> words;
  for (const std::string& word : settings)
    words.push_back(word.find_first_of(" {}") == std::string::npos ? word : "'" + word + "'");
  return fmt::to_string(fmt::join(words, " "));
}

std::string system_text(const OtherSystem& system) {
  if (system.flags.empty()) return "not possible there: " + system.note;
  return system.flags + (system.note.empty() ? "" : "  (" + system.note + ")");
}

std::vector<OtherSystem> other_systems(const Candidate& candidate, const planner::Work& work, bool pictures) {
  const parallel::ParallelLayout& layout = candidate.configuration.layout;
  const parallel::ContextLayout& context = layout.context;
  const Split split{layout.data,    context.ulysses, context.ring,
                    context.gather, layout.tensor,   work.heads / layout.tensor,
                    work.tokens};
  return {diffusers(split), xdit(split, layout.vae_ranks, pictures), sglang(split),
          maxdiffusion(split, candidate.configuration, work.videos)};
}

}  // namespace zoetrope::plan_report
