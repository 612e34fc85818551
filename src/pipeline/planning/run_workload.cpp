#include "pipeline/planning/run_workload.h"

#include <algorithm>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/index_range.h"
#include "base/words.h"
#include "comm/launcher.h"
#include "io/media/extension.h"
#include "io/media/video.h"
#include "models/wan/step_work.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/vae/vae_tiling.h"
#include "parallel/exchange.h"
#include "pipeline/inputs/given_inputs.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/outputs/frame_queue.h"
#include "pipeline/settings/segments.h"
#include "pipeline/settings/step_cache_options.h"

namespace zoetrope::pipeline {
namespace {

// Of code and of what the kernels' library generates, once they are used.
constexpr int64_t kGrowth = 15'000'000;

}  // namespace

wan::RunSize run_size(const MemoryQuestion& question) {
  const GenerateOptions& o = question.options;
  wan::RunSize size;
  size.height = o.height;
  size.width = o.width;
  const wan::TransformerConfig& config = question.configs.experts.front();
  const Segments segments = segments_of(o, config.animate());
  size.frames = segments.frames;
  size.segments = segments.count;
  size.reference_images = config.animate() ? 1 : static_cast<int64_t>(reference_paths(o).size());
  size.image = !o.image.empty();
  size.control_video = !o.control_video.empty();
  if (question.configs.image_encoder)
    size.image_rows = config.pos_embed_seq_len.value_or(question.configs.image_encoder->tokens());
  constexpr int64_t kStepAndClean = 2;
  if (size.image && config.in_channels == question.configs.vae.z_dim) size.timesteps = kStepAndClean;
  const int64_t inputs = inputs_bytes(o, config.face ? config.face->image_size : 0);
  size.inputs_bytes =
      inputs * (config.animate() && !o.dump.empty() ? 2 : 1) + question.known_prompts + question.grid_frames;
  size.videos = o.batch_size;
  size.prompts = o.batch_size * (o.guidance_scale > 1 ? 2 : 1);
  size.text_rows = o.max_sequence_length;
  size.prompt_tokens = question.prompt_tokens;
  size.kv_vector_bytes = parallel::kv_vector_bytes(o.strategy.kv_exchange_dtype, config.attention_head_dim);
  size.int8_attention = o.strategy.attention_dtype == attention::AttentionDtype::kInt8;
  size.transformer = activation_dtype(o);
  size.text_encoder = o.text_encoder_dtype;
  size.vae = o.vae_dtype;
  size.vae_convolution = convolution_of(o);
  size.vae_tiling = o.vae_tiling;
  size.previews = o.preview.has_value();
  const std::optional<sampling::StepWork> reuse = step_cache_reuse(o);
  size.keeps_residual = reuse == sampling::StepWork::kReuseResidual;
  // Those of the last full step; of drift also the velocity that it would have had.
  if (reuse && reuse != sampling::StepWork::kConditionalOnly)
    size.kept_latents = o.cache == sampling::StepCacheKind::kDrift ? 2 : 1;
  // The run to compare with takes both branches together.
  size.branches_apart = reuse == sampling::StepWork::kConditionalOnly && !o.cache_compare;
  const int64_t dumped = 4 + 1 + (config.animate() ? 4 : 0);  // F32 and U8; each segment as it was decoded
  size.kept_frame_bytes = (o.dump.empty() ? 0 : dumped) + std::max<int64_t>(o.frames_in_memory, o.sink_value_bytes);
  if (io::extension_of(o.output) == ".gif") ++size.kept_frame_bytes;  // its palette is of all frames
  if (!o.output.empty()) size.video_encoder_bytes = o.batch_size * io::encoder_bytes(o.output, video_format(o));
  if (!o.dump.empty()) size.dumped_latents = 1 + 2 * steps_of(o);  // the noise; latents and velocity of each step
  size.sharers = question.sharers;
  size.weight_cache = !o.weight_cache.empty();
  size.as_stored = o.weights_in_memory == WeightsInMemory::kAsStored;
  if (o.weight_memory) size.weight_memory = planner::Bytes::of_gigabytes(*o.weight_memory).count();
  size.keeps_transformer = o.keep_weights != KeepWeights::kNone;
  size.keeps_vae = o.keep_weights == KeepWeights::kAll;
  size.frames_waiting = static_cast<int64_t>(FrameQueue::kMostAtOnce);
  size.threads = comm::process_threads(o.threads);
  size.share_of_first = question.share_of_first;
  if (question.resident) size.program_bytes = *question.resident + std::max(kGrowth, question.of_others);
  return size;
}

std::function<planner::Workload(const parallel::ParallelLayout&, int)> workload_by_layout(
    const MemoryQuestion& question) {
  return
      [configs = question.configs, size = run_size(question)](const parallel::ParallelLayout& layout, int ranks_here) {
        // A run shares nothing with those beside it.
        wan::RunSize own = size;
        own.sharers = std::min(size.sharers, static_cast<int>(ceil_div(layout.ranks(), ranks_here)));
        return wan::workload(configs, own, layout, ranks_here);
      };
}

planner::MemoryPlan memory_plan(const MemoryQuestion& question) {
  planner::Workload workload = workload_by_layout(question)(question.layout, question.ranks_here);
  workload.softmax = attention::requested_strategy(question.options.strategy).softmax.value_or(workload.softmax);
  return planner::memory_model(workload);
}

planner::Bytes kept_bytes(const MemoryQuestion& question, const KeptWeights& kept) {
  const planner::Workload most = workload_by_layout(question)(question.layout, question.ranks_here);
  const bool maps_files = question.options.weights_in_memory == WeightsInMemory::kAsStored;
  planner::Bytes bytes;
  for (const planner::Workload::Expert& expert : most.experts) {
    if (!kept.experts) break;
    bytes += expert.weights.resident;
    if (maps_files) bytes = bytes - expert.weights.stored / std::max(1, question.sharers);
  }
  if (kept.vae_decoder) bytes += most.vae.weights.resident;
  if (kept.vae_encoder) bytes += most.kept_vae_encoder;
  return bytes;
}

TransformerMemory transformer_memory(const MemoryQuestion& question) {
  const wan::RunSize size = run_size(question);
  const int64_t packed_from = question.options.weight_cache.empty() ? wan::packed_from_bytes(question.configs) : 0;
  TransformerMemory memory;
  for (const wan::TransformerConfig& config : question.configs.experts) {
    const int tensor = question.layout.tensor;
    const io::TensorTable part = io::part_of(wan::transformer_tensors(config), tensor, tensor - 1);
    memory.asked = std::max(memory.asked, wan::transformer_weight_bytes(part, size.transformer));
    memory.least = std::max(memory.least, wan::streamed_bytes(config, size.transformer, packed_from, tensor).least);
  }
  if (size.weight_memory > 0) memory.asked = std::min(memory.asked, size.weight_memory);
  return memory;
}

planner::Bytes peak_memory(const MemoryQuestion& question) { return memory_plan(question).peak().total(); }

planner::Work work_of(const MemoryQuestion& question) {
  planner::Work work = wan::work(question.configs, run_size(question));
  work.weights.ranks_here = question.ranks_here;
  return work;
}

int decoding_ranks(const GenerateOptions& options, const RunPlan& plan, const ModelFolder& model, int ranks) {
  const int64_t rows = plan.latent[1], most = std::min<int64_t>(ranks, rows);
  if (options.vae_parallel.value_or(1) > most) {
    fail("vae_parallel={}: at most {}: this job has {}, and each needs one of the {} latent rows of height={}",
         *options.vae_parallel, most, counted(ranks, "rank"), rows, options.height);
  }
  if (options.vae_tiling && options.vae_parallel.value_or(1) > 1) {
    fail(
        "vae_parallel={}: tiles are decoded by one rank; leave out vae_parallel, or vae_tiling, without which frames "
        "have no seams",
        *options.vae_parallel);
  }
  if (options.vae_tiling && wan::decodes_in_tiles(model.vae_config, plan.latents())) return 1;
  return static_cast<int>(options.vae_parallel.value_or(most));
}

int text_ranks(bool deterministic, int ranks) { return deterministic ? 1 : ranks; }

}  // namespace zoetrope::pipeline
