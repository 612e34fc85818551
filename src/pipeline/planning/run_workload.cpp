#include "pipeline/planning/run_workload.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <system_error>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/index_range.h"
#include "base/input_file.h"
#include "base/json.h"
#include "base/words.h"
#include "comm/launcher.h"
#include "io/media/extension.h"
#include "io/media/video.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/step_work.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/vae/vae_tiling.h"
#include "parallel/exchange.h"
#include "pipeline/inputs/given_inputs.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/model_files/component_files.h"
#include "pipeline/model_files/convert_plan.h"
#include "pipeline/outputs/frame_queue.h"
#include "pipeline/settings/segments.h"
#include "pipeline/settings/step_cache_options.h"

namespace zoetrope::pipeline {
namespace {

// Of code and of what the kernels' library generates, once they are used.
constexpr int64_t kGrowth = 15'000'000;

// Of the model's own folder nothing where files are not whole yet: an index whose shards are still to come.
std::optional<io::Checkpoint> weights_there(const std::filesystem::path& path, const std::string& component,
                                            bool named) {
  try {
    return open_component(path, {.name = component, .stem = stem_of(component), .tensors = {}});
  } catch (const Error&) {
    if (named) throw;
    return std::nullopt;
  }
}

// Calls use(name, tensor) for those of a component, in files that may have others as well. False: they have no prefix.
template <typename Use>
bool each_with_prefix(const io::Checkpoint& files, const io::FileRules& rules, Use&& use) {
  for (const std::string_view prefix : rules.prefixes) {
    bool any = false;
    for (const auto& file : files.files()) {
      for (const auto& [name, info] : file->tensors()) {
        if (!name.starts_with(prefix)) continue;
        any = true;
        use(name.substr(prefix.size()), info);
      }
    }
    if (any) return true;
  }
  return false;
}

int64_t transformer_bytes(const io::Checkpoint& files) {
  uint64_t bytes = 0;
  const bool named =
      each_with_prefix(files, wan::transformer_files(), [&](const auto&, const auto& info) { bytes += info.bytes; });
  return named ? static_cast<int64_t>(bytes) : checkpoint_bytes(files);
}

int64_t used_bytes(const io::Checkpoint& files, double share) {
  return std::llround(static_cast<double>(transformer_bytes(files)) * share);
}

wan::TextLayers text_layers_of(const io::Checkpoint& files, const encoders::TextEncoderConfig& config) {
  const io::FileRules rules = encoders::text_encoder_files();
  uint64_t bytes = 0;
  bool decoded = false;
  const auto add = [&](const std::string& name, const io::TensorInfo& info) {
    if (rules.ignored(name) || info.shape.size() == config.vocab_size * config.d_model) return;
    bytes += info.bytes;
    const bool in_place = info.aligned && (info.dtype == DType::kF32 || info.dtype == DType::kBF16);
    decoded = decoded || (!in_place && info.extents.size() > 1);
  };
  if (!each_with_prefix(files, rules, add))
    for (const auto& file : files.files())
      for (const auto& [name, info] : file->tensors()) add(name, info);
  return {static_cast<int64_t>(bytes), decoded};
}

}  // namespace

wan::ModelConfigs model_configs(const ModelFolder& model) {
  wan::ModelConfigs configs;
  for (const Expert& expert : model.experts) configs.experts.push_back(expert.config);
  configs.text_encoder = model.text_encoder_config;
  configs.vae = model.vae_config;
  configs.stored.transformer = model.experts[0].weights.stored_dtype();
  configs.stored.text_encoder = model.text_encoder.stored_dtype();
  configs.stored.vae = model.vae.stored_dtype();
  if (const io::Checkpoint* files = model.text_encoder.checkpoint())
    configs.text_layers = text_layers_of(*files, model.text_encoder_config);
  for (const Expert& expert : model.experts) {
    if (const io::Checkpoint* files = expert.weights.checkpoint())
      configs.transformer_file_bytes = std::max(configs.transformer_file_bytes, used_bytes(*files, expert.share));
  }
  if (model.image_encoder) {
    configs.image_encoder = model.image_encoder->config;
    configs.stored.image_encoder = model.image_encoder->weights.stored_dtype();
  }
  for (const Expert& expert : model.experts) {
    for (const lora::Lora& lora : expert.loras) {
      // Changes without a matrix product need almost no memory but the sum.
      configs.merge_scratch = std::max({configs.merge_scratch, lora.scratch_elements, int64_t{1}});
    }
  }
  configs.mapped = model.text_encoder.checkpoint() != nullptr;
  configs.takes_pictures = model.kind.image.taken || model.kind.control.taken;
  return configs;
}

std::vector<std::string> use_stored_weights(const GenerateOptions& options, const std::filesystem::path& folder,
                                            wan::ModelConfigs& configs) {
  std::vector<std::string> missing;
  const std::map<std::string, std::filesystem::path> files = named_files(options);
  for (const auto& [name, class_name] : components_with_weights(folder)) {
    auto& stored = configs.stored;
    DType& dtype = name == "text_encoder"    ? stored.text_encoder
                   : name == "image_encoder" ? stored.image_encoder
                   : name == "vae"           ? stored.vae
                                             : stored.transformer;
    const auto named = files.find(name);
    const std::filesystem::path path = named != files.end() ? named->second : folder / name;
    const bool there = named != files.end() ? is_there(path) : io::Checkpoint::exists(path, stem_of(name));
    const std::optional<io::Checkpoint> file =
        there ? weights_there(path, name, named != files.end()) : std::optional<io::Checkpoint>();
    if (!file) {
      if (there || named != files.end()) missing.push_back(fmt::format("{}={}", name, path.string()));
      dtype = published_dtype(JsonObject::load(config_of(folder, files, name)));
      continue;
    }
    dtype = main_dtype(*file);
    if (name == "text_encoder") configs.text_layers = text_layers_of(*file, configs.text_encoder);
    if (!name.starts_with("transformer")) continue;
    const wan::TransformerConfig& used = name == "transformer" ? configs.experts.front() : configs.experts.back();
    const auto whole = wan::TransformerConfig::load(config_of(folder, files, name));
    configs.transformer_file_bytes =
        std::max(configs.transformer_file_bytes, used_bytes(*file, wan::share_of(used, whole)));
  }
  return missing;
}

int64_t transformer_file_bytes(const wan::ModelConfigs& configs) {
  if (configs.transformer_file_bytes > 0) return configs.transformer_file_bytes;
  int64_t bytes = 0;
  for (const wan::TransformerConfig& config : configs.experts) {
    const io::TensorTotals totals = io::totals(wan::transformer_tensors(config));
    bytes = std::max(bytes, static_cast<int64_t>(totals.bytes(configs.stored.transformer)));
  }
  return bytes;
}

int64_t converted_file_bytes(const wan::ModelConfigs& configs, const io::NumberFormatInfo& format) {
  int64_t bytes = 0;
  for (const wan::TransformerConfig& config : configs.experts) {
    const io::TensorTable tensors = wan::transformer_tensors(config);
    bytes = std::max(bytes, converted_bytes(tensors, format, configs.stored.transformer));
  }
  return bytes;
}

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

planner::Work work_of(const MemoryQuestion& question) { return wan::work(question.configs, run_size(question)); }

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

int prompt_ranks(bool deterministic, int ranks) { return deterministic ? 1 : ranks; }

}  // namespace zoetrope::pipeline
