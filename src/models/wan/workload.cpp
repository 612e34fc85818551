#include "models/wan/workload.h"

#include <algorithm>
#include <cmath>

#include "base/index_range.h"
#include "io/weights/packing_threads.h"
#include "kernels/flash_attention/flash_attention.h"
#include "models/encoders/cost.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/face_encoder.h"
#include "models/wan/transformer/text_context.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/transformer/workspace.h"
#include "models/wan/vae/preview_latents.h"
#include "models/wan/vae/vae_cost.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_tiling.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::wan {
namespace {

using planner::Bytes;
using planner::WeightBytes;

constexpr int64_t kFloat = 4;
// Per thread: tiles of attention, rows of a convolution.
constexpr int64_t kKernelScratch = kernels::kConvScratch;

int64_t size_of(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

WeightBytes weights_of(const io::TensorTable& table, DType stored) {
  WeightBytes weights;
  weights.parameters = io::totals(table).parameters;
  weights.stored = Bytes(weights.parameters) * size_of(stored);
  return weights;
}

// ---- transformer ----

// Bytes that `threads` threads need while they pack: the modulation of all blocks, which exists once for each of a
// process's parts of the model, and the widest of the blocks. Threads share a weight in pieces, and of all weights that
// they are at work on only the first and the last are not whole pieces of theirs. A sum with a LoRA is one piece.
Bytes packing_bytes(const TransformerConfig& config, const ModelConfigs& configs, int threads, int parts) {
  const int64_t d = config.inner_dim(), widest = std::max(3 * d * d, config.ffn_dim * d), modulation = 6 * d * d;
  const int64_t whole = std::max(0, threads - parts) * widest;
  const int64_t shared = 2 * widest + threads * io::kPieceElements, summed = io::kMostBuffered / kFloat + widest;
  const int64_t pages = std::min(whole, configs.merge_scratch > 0 ? summed : shared);
  Bytes bytes = Bytes(parts * modulation + pages) * size_of(configs.stored.transformer);
  if (configs.merge_scratch == 0) return bytes;
  // The sum of the stored weight and its change is computed in a buffer, like formulas.
  if (configs.mapped) {
    const int64_t most = std::max(io::kMostBuffered / kFloat, std::max(modulation, widest));
    bytes += Bytes(std::min(parts * modulation + whole, most)) * kFloat;
  }
  const int64_t sums = std::clamp<int64_t>(io::kMostBuffered / (d * d * kFloat), 1, threads);
  return bytes + Bytes(configs.merge_scratch) * kFloat * sums;
}

}  // namespace

int64_t packed_from_bytes(const ModelConfigs& configs) {
  // Tensors that are computed with, and sums with a LoRA, are F32.
  constexpr int64_t kLeast = 2;
  return configs.merge_scratch > 0 ? kFloat : std::max(kLeast, size_of(configs.stored.transformer));
}

namespace {

// How a process has the weights of a transformer.
struct WeightParts {
  int shards = 1;     // processes that share them
  int tensor = 1;     // ranks that divide every layer
  int here = 1;       // of these, those in one process: each has its part
  int processes = 1;  // over which a copy is spread by that
};

WeightParts weight_parts(const parallel::ParallelLayout& layout, int ranks_here) {
  WeightParts parts;
  parts.shards = ranks_here > 1 ? 1 : layout.weight_shards;
  parts.tensor = layout.tensor;
  parts.here = std::clamp(ranks_here, 1, layout.tensor);
  parts.processes = static_cast<int>(ceil_div(layout.tensor, parts.here));
  return parts;
}

planner::Workload::Expert expert_of(const TransformerConfig& config, const ModelConfigs& configs, const RunSize& size,
                                    int64_t branches, int64_t tokens, int64_t frames, int rank_threads,
                                    const WeightParts& parts) {
  planner::Workload::Expert expert;
  const io::TensorTable table = transformer_tensors(config);
  expert.weights = weights_of(table, configs.stored.transformer);
  // Quantised files hold less than tensors of that dtype.
  if (configs.transformer_file_bytes > 0) expert.weights.stored = Bytes(configs.transformer_file_bytes);
  // Of its parts, all as large as the last.
  const io::TensorTable part = io::part_of(table, parts.tensor, parts.tensor - 1);
  expert.weights.resident = Bytes(transformer_weight_bytes(part, size.transformer)) * parts.here;
  if (parts.shards > 1) {
    const Bytes own(sharded_weight_bytes(config, size.transformer, parts.shards, parts.tensor));
    expert.weights.resident = std::min(expert.weights.resident, own);
  } else if (size.weight_memory > 0) {
    expert.weights.resident = std::min(expert.weights.resident, Bytes(size.weight_memory) * parts.here);
  } else if (size.as_stored) {
    const StreamedBytes packed = streamed_bytes(config, size.transformer, packed_from_bytes(configs), parts.tensor);
    // All processes of a host map the same file.
    expert.weights.resident = expert.weights.stored / std::max(1, size.sharers) + Bytes(packed.usual) * parts.here;
  } else {
    // Processes with the same part have one copy of it.
    expert.weights.resident = expert.weights.resident / std::max(1, size.sharers / parts.processes);
  }
  expert.weights.in_flight = packing_bytes(config, configs, size.threads, parts.here);
  const ContextRows rows{size.text_rows, image_rows(config, size)};
  expert.context = Bytes(text_context_bytes(config, branches, rows, size.transformer, parts.tensor)) +
                   Bytes(branches * rows.text * config.text_dim * kFloat) +
                   Bytes(branches * rows.image * config.image_dim.value_or(0) * kFloat);
  expert.context_making = Bytes(text_context_making_bytes(config, branches, rows, size.transformer));
  if (config.face) {
    // While the face's tokens are made: the encoder's pictures, the tokens and what their keys are made of.
    const int64_t face_rows = frames * config.face->tokens() * config.inner_dim() * size_of(size.transformer);
    expert.context_making +=
        Bytes(face_encoding_bytes(*config.face, size.transformer, rank_threads)) + Bytes(face_rows) * (branches + 3);
  }
  TransformerSize buffers;
  buffers.tokens = tokens;
  buffers.batch = branches;
  buffers.group = size.branches_apart ? 1 : branches;
  buffers.timesteps = size.timesteps > 0 ? size.timesteps : branches;
  buffers.keeps_residual = size.keeps_residual;
  buffers.frames = frames;
  buffers.dtype = size.transformer;
  buffers.tensor = parts.tensor;
  expert.workspace = Bytes(transformer_workspace_bytes(config, buffers, rank_threads));
  return expert;
}

// ---- VAE ----

// What 16 points take more than the 9 taps that they stand for, where weights are stored as points.
Bytes winograd_bytes(const CoderLayout& layout, const RunSize& size) {
  Bytes bytes;
  const auto add = [&](const ConvLayout& conv, kernels::ConvAlgorithm algorithm) {
    kernels::FrameConvProblem problem;
    problem.in_channels = conv.in;
    problem.out_channels = conv.out;
    problem.frames = conv.kernel[0];
    problem.kernel = {conv.kernel[1], conv.kernel[2]};
    problem.dtype = size.vae;
    problem.bf16_weights = size.vae == DType::kBF16;
    problem.algorithm = algorithm;
    if (kernels::algorithm_of(problem) != kernels::ConvAlgorithm::kWinograd) return;
    const int64_t taps = conv.in * conv.out * conv.kernel[0] * conv.kernel[1] * conv.kernel[2];
    bytes += Bytes(kernels::winograd_weight_bytes(problem) - taps * size_of(size.vae));
  };
  const auto residual = [&](const ResidualLayout& block) {
    add(block.conv1, size.vae_convolution);
    add(block.conv2, size.vae_convolution);
  };
  add(layout.in, algorithm_of_ends(size.vae_convolution));
  residual(layout.middle_first);
  residual(layout.middle_last);
  for (const StageLayout& stage : layout.stages)
    for (const ResidualLayout& block : stage.resnets) residual(block);
  add(layout.out, algorithm_of_ends(size.vae_convolution));
  return bytes;
}

// In the VAE's dtype. An upsampling convolution is stored as four of 2×2 taps, one for each pixel of a cell: sums of
// weights, which bf16 cannot represent exactly.
Bytes decoder_resident_bytes(const VaeConfig& config, const RunSize& size) {
  const CoderLayout layout = decoder_layout(config);
  Bytes bytes = Bytes(io::resident_bytes(vae_decoder_tensors(config), size.vae)) + winograd_bytes(layout, size);
  constexpr int64_t kCells = 4, kCellTaps = 4;
  for (const StageLayout& stage : layout.stages) {
    if (!stage.resample) continue;
    const ConvLayout& conv = stage.resample->spatial;
    const int64_t cells = kCells * kCellTaps * kFloat, as_stored = conv.kernel[1] * conv.kernel[2] * size_of(size.vae);
    bytes += Bytes(conv.in * conv.out) * (cells - as_stored);
  }
  return bytes;
}
Bytes encoder_resident_bytes(const VaeConfig& config, const RunSize& size) {
  return Bytes(io::resident_bytes(vae_encoder_tensors(config), size.vae)) +
         winograd_bytes(encoder_layout(config), size);
}

bool in_tiles(const VaeConfig& config, const RunSize& size) {
  const int64_t spatial = config.spatial_factor();
  const Shape latents{config.z_dim, config.latent_frames(size.frames), size.height / spatial, size.width / spatial};
  return size.vae_tiling && decodes_in_tiles(config, latents);
}

io::TensorTable tensors_of(const VaeConfig& config, VaeParts part) {
  return part == VaeParts::kDecoder ? vae_decoder_tensors(config) : vae_encoder_tensors(config);
}

Bytes widest_tensor(const io::TensorTable& table) {
  Bytes widest;
  for (const io::TensorSpec& spec : table) widest = std::max(widest, Bytes(spec.shape.size()) * kFloat);
  return widest;
}

// For a rank that encodes or decodes pictures (or tiles) of this size.
Bytes coder_workspace(const ModelConfigs& configs, const RunSize& size, int sharers, int ranks_here, int64_t height,
                      int64_t width, VaeParts part) {
  const VaeConfig& config = configs.vae;
  const int64_t own = ceil_div(height / config.spatial_factor(), sharers);  // of the part with the most rows
  const size_t frames = sharers > 1 ? vae_workspace_bytes(config, height, width, size.vae, part, IndexRange{0, own})
                                    : vae_workspace_bytes(config, height, width, size.vae, part);
  Bytes bytes(static_cast<int64_t>(frames + vae_attention_scratch_bytes(config, height, width, part)));
  bytes += Bytes(kKernelScratch) * ceil_div(size.threads, std::min(ranks_here, sharers));
  // A convolution's weights as float32, into which bf16 weights are widened while it runs: all, or 16 points of 9 taps.
  const int64_t values = size.vae_convolution == kernels::ConvAlgorithm::kDirect ? 9 : 16;
  if (size.vae == DType::kBF16) bytes += widest_tensor(tensors_of(config, part)) * values / 9;
  return bytes;
}

// A thread converts some rows of a tensor, of formulas after it has computed them; one that several convolutions are
// made of, all of it. Plus the file pages of two tensors: one is begun before the other is complete.
Bytes in_flight(const io::TensorTable& table, const ModelConfigs& configs, int threads) {
  constexpr int64_t kRows = 64;
  const Bytes widest = widest_tensor(table);
  Bytes piece;
  for (const io::TensorSpec& spec : table) {
    const int64_t rows = spec.shape.rank() > 0 ? std::min(kRows, spec.shape[0]) : 1;
    piece = std::max(piece, Bytes(spec.shape.size() / std::max<int64_t>(1, spec.shape[0]) * rows) * kFloat);
  }
  const Bytes converted = widest + piece * threads;
  return converted + (configs.mapped ? (widest + converted) / kFloat * size_of(configs.stored.vae) : converted);
}

// Of a process: those of a host that run the VAE keep one copy, which with ranks dealt out host by host, as mpirun does
// unless told otherwise, are as many as can be.
Bytes of_a_copy(Bytes resident, const RunSize& size, int sharers) {
  return resident / std::clamp(size.sharers, 1, std::max(1, sharers));
}

planner::Workload::Vae vae_of(const ModelConfigs& configs, const RunSize& size, int sharers, int ranks_here) {
  const VaeConfig& config = configs.vae;
  planner::Workload::Vae vae;
  const int64_t spatial = config.spatial_factor();
  vae.weights = weights_of(vae_tensors(config), configs.stored.vae);
  const Bytes decoder = decoder_resident_bytes(config, size);
  vae.weights.resident = of_a_copy(decoder, size, sharers);
  vae.weights.in_flight = in_flight(vae_decoder_tensors(config), configs, size.threads);
  const bool tiled = in_tiles(config, size);
  const int64_t height = tiled ? std::min(size.height, TileSizes().height) : size.height;
  const int64_t width = tiled ? std::min(size.width, TileSizes().width) : size.width;
  vae.workspace = coder_workspace(configs, size, sharers, ranks_here, height, width, VaeParts::kDecoder);
  if (size.previews) {
    const int64_t cells = preview_cells(config, size.height / spatial, size.width / spatial);
    const auto side = [&](int64_t pixels) { return ceil_div(pixels / spatial, cells) * spatial; };
    // Rank 0's own.
    vae.preview = decoder + vae.weights.in_flight +
                  coder_workspace(configs, size, 1, 1, side(size.height), side(size.width), VaeParts::kDecoder);
  }
  const Bytes frame = Bytes(size.height * size.width * pixel_channels(config, config.out_channels)) * kFloat;
  vae.output = frame * size.frames_waiting;
  vae.video_encoder = Bytes(size.video_encoder_bytes);
  if (tiled) {
    vae.output += Bytes(static_cast<int64_t>(
        tiled_decode_bytes(config, config.latent_frames(size.frames), size.height / spatial, size.width / spatial)));
  }
  return vae;
}

// ---- conditions ----

planner::Workload::Conditions conditions_of(const ModelConfigs& configs, const RunSize& size, int sharers,
                                            int ranks_here, int64_t cells, int64_t cells_of_frame) {
  planner::Workload::Conditions conditions;
  if (encoded_clips(configs, size).empty()) return conditions;
  const VaeConfig& config = configs.vae;
  const io::TensorTable table = vae_encoder_tensors(config);
  conditions.weights = weights_of(vae_tensors(config), configs.stored.vae);
  conditions.weights.in_flight = in_flight(table, configs, size.threads);
  const bool tiled = size.vae_tiling && encodes_in_tiles({1, size.height, size.width, config.in_channels});
  if (tiled) sharers = 1;  // they follow one another on one rank
  conditions.weights.resident = of_a_copy(encoder_resident_bytes(config, size), size, sharers);
  // The encoder's tiles are counted in patches.
  const int64_t height = tiled ? std::min(size.height, TileSizes().height * config.patch_size) : size.height;
  const int64_t width = tiled ? std::min(size.width, TileSizes().width * config.patch_size) : size.width;
  conditions.workspace = coder_workspace(configs, size, sharers, ranks_here, height, width, VaeParts::kEncoder);
  if (tiled) {
    const std::vector<int64_t> clips = encoded_clips(configs, size);
    const int64_t longest = *std::max_element(clips.begin(), clips.end());
    conditions.workspace += Bytes(static_cast<int64_t>(tiled_encode_bytes(config, longest, size.height, size.width)));
  }
  conditions.workspace +=
      Bytes(size.height * size.width * pixel_channels(config, config.in_channels)) * kFloat;  // a frame
  // The moments, the mean before and after its rows are gathered, and both halves of a control video.
  constexpr int64_t kMade = 6;
  conditions.making = Bytes(cells) * (config.z_dim * kFloat * kMade);
  // A first frame, and the input that it is part of; the conditions next to the latents are counted with them.
  if (configs.experts.front().in_channels == config.z_dim && size.image)
    conditions.made = Bytes(cells_of_frame + cells) * config.z_dim * kFloat;
  if (!configs.image_encoder) return conditions;
  const encoders::ClipVisionConfig& tower = *configs.image_encoder;
  constexpr int64_t kMostPictures = 2;
  const auto bytes = [](size_t count) { return Bytes(static_cast<int64_t>(count)); };
  conditions.image_weights =
      weights_of(encoders::clip_vision_tensors(tower, encoders::ClipTensors::kUsed), configs.stored.image_encoder);
  conditions.image_weights.in_flight =
      bytes(configs.mapped ? encoders::clip_mapped_bytes(tower, configs.stored.image_encoder)
                           : encoders::clip_buffer_bytes(tower, DType::kF32));
  if (configs.mapped && configs.stored.image_encoder != DType::kF32)
    conditions.image_weights.in_flight += bytes(encoders::clip_buffer_bytes(tower, DType::kF32));
  conditions.image_workspace = bytes(encoders::clip_workspace_bytes(tower, kMostPictures, DType::kF32, size.threads)) +
                               Bytes(kKernelScratch) * size.threads;
  return conditions;
}

// ---- text encoder ----

planner::Workload::TextEncoder text_encoder_of(const ModelConfigs& configs, const RunSize& size, int sharers,
                                               int ranks_here, int rank_threads) {
  const encoders::TextEncoderConfig& config = configs.text_encoder;
  planner::Workload::TextEncoder text;
  text.weights = weights_of(encoders::text_encoder_tensors(config), configs.stored.text_encoder);
  std::vector<int64_t> lengths = size.prompt_tokens;
  lengths.resize(static_cast<size_t>(size.prompts), size.text_rows);
  encoders::TextEncoderUse use;
  for (const int64_t length : lengths) {
    use.rows += length;
    use.longest = std::max(use.longest, length);
  }
  use.dtype = size.text_encoder;
  use.parts = std::max(1, sharers);
  // Where one rank works for all, it has the threads of its process.
  use.threads = use.parts == 1 ? size.threads : rank_threads;
  text.workspace = Bytes(static_cast<int64_t>(encoders::text_encoder_workspace_bytes(config, use)));
  const TextLayers layers = text_layers(configs);
  if (configs.mapped) {
    const double of_weight = static_cast<double>(layers.file_bytes) / static_cast<double>(text_layer_weights(config));
    const auto mapped = static_cast<double>(
        encoders::text_encoder_mapped_weights(config, use.parts, std::clamp(ranks_here, 1, use.parts)));
    text.weights.in_flight = Bytes(std::llround(mapped * of_weight));
  }
  if (!configs.mapped || layers.decoded)
    text.weights.in_flight +=
        Bytes(static_cast<int64_t>(encoders::text_encoder_buffer_bytes(config, size.text_encoder, use.parts)));
  return text;
}

}  // namespace

int64_t text_layer_weights(const encoders::TextEncoderConfig& config) {
  return io::totals(encoders::text_encoder_tensors(config)).parameters - config.vocab_size * config.d_model;
}

TextLayers text_layers(const ModelConfigs& configs) {
  const DType stored = configs.stored.text_encoder;
  return configs.text_layers.value_or(
      TextLayers{text_layer_weights(configs.text_encoder) * size_of(stored), stored == DType::kF16});
}

int64_t image_rows(const TransformerConfig& config, const RunSize& size) {
  if (!config.image_dim) return 0;
  // 16 × 16 patches of a picture and one row for all of it.
  constexpr int64_t kRowsOfOneImage = 257;
  return size.image_rows > 0 ? size.image_rows : config.pos_embed_seq_len.value_or(kRowsOfOneImage);
}

std::vector<int64_t> encoded_clips(const ModelConfigs& configs, const RunSize& size) {
  const TransformerConfig& config = configs.experts.front();
  std::vector<int64_t> clips;
  if (config.vace()) {
    // Of a video both halves; without one they are the same.
    clips.assign(size.control_video ? 2 : 1, size.frames);
    clips.insert(clips.end(), static_cast<size_t>(size.reference_images), 1);
  } else if (config.animate()) {
    // The picture; of each segment its pose and its condition, which behind the first one is each video's own.
    clips.assign(static_cast<size_t>(size.segments + 1 + (size.segments - 1) * size.videos), size.frames);
    clips.push_back(1);
  } else if (config.in_channels > configs.vae.z_dim) {
    clips = {size.frames};
  } else if (size.image) {
    clips = {1};
  }
  return clips;
}

planner::Workload workload(const ModelConfigs& configs, const RunSize& size, const parallel::ParallelLayout& layout,
                           int ranks_here) {
  planner::Workload w;
  const TransformerConfig& config = configs.experts.front();
  const int64_t spatial = configs.vae.spatial_factor();
  const int64_t frame_cells = (size.height / spatial) * (size.width / spatial);
  const int64_t cells = (configs.vae.latent_frames(size.frames) + size.reference_images) * frame_cells;
  const int64_t tokens = cells / config.patch_volume();
  const int64_t branches = std::max<int64_t>(1, size.prompts / layout.data);
  const int64_t shard = parallel::largest_token_shard(tokens, layout.of_sequence());
  const int64_t element = size_of(size.transformer);
  const auto rank_threads = static_cast<int>(std::max(1, size.threads / std::max(1, ranks_here)));

  w.layout = layout;
  w.ranks_here = ranks_here;
  w.keeps_transformer = size.keeps_transformer;
  w.segments = size.segments;
  w.keeps_vae = size.keeps_vae;
  w.program = Bytes(size.program_bytes);
  // Latents, their noise, UniPC's history of two steps, the velocity; the conditions next to the latents in the
  // model's input, and that input; the control video; the rows of the prompts.
  constexpr int64_t kLatents = 8;
  const int64_t condition = config.in_channels - configs.vae.z_dim;
  const int64_t own = config.animate() && size.segments > 1 ? size.videos : 1;  // each video's
  const int64_t conditions = condition > 0 ? condition * own + config.in_channels : 0;
  const int64_t control = config.vace() ? config.vace_in_channels : config.animate() ? config.out_channels : 0;
  const int64_t copies = kLatents + size.kept_latents;
  // In a batch the input of each sample.
  const int64_t inputs = size.videos > 1 ? branches * config.in_channels : 0;
  w.per_rank = Bytes(cells) * ((configs.vae.z_dim * copies * size.videos + conditions + inputs + control) * kFloat) +
               Bytes(size.prompts * size.text_rows) * configs.text_encoder.d_model * kFloat;
  // What the next segment of Animate begins with, from its decoding on.
  constexpr int64_t kMostShared = 5;
  if (size.segments > 1) w.per_rank += Bytes(size.height * size.width * 3) * (kFloat * kMostShared * size.videos);
  w.inputs = Bytes(size.inputs_bytes);
  w.text = text_encoder_of(configs, size, layout.text_ranks, ranks_here, rank_threads);
  for (const TransformerConfig& expert : configs.experts) {
    const int64_t frames = cells / frame_cells / config.patch_size[0];
    w.experts.push_back(
        expert_of(expert, configs, size, branches, shard, frames, rank_threads, weight_parts(layout, ranks_here)));
    w.experts.back().name = w.experts.size() == 1 ? "transformer" : "transformer_2";
  }
  w.attention = {size.branches_apart ? 1 : branches, tokens, config.num_attention_heads / layout.tensor,
                 config.attention_head_dim, element};
  w.attention.kv_vector_bytes = size.kv_vector_bytes;
  // Keys and values of a head, packed; of short sequences those of several, which threads divide.
  const Bytes head = Bytes(tokens) * (2 * config.attention_head_dim * kFloat);
  const Bytes heads = head * (rank_threads > 1 ? branches * config.num_attention_heads / layout.tensor : 1);
  w.kernel_scratch =
      std::max(head, std::min(heads, Bytes(kernels::kFlashPackBudget))) + Bytes(kKernelScratch) * rank_threads;
  w.step = Bytes(branches * shard + size.prompts * tokens) * (config.patch_output_dim() * element) +
           Bytes(size.prompts + size.videos) * cells * (config.out_channels * kFloat);
  if (in_tiles(configs.vae, size)) w.layout.vae_ranks = 1;  // tiles follow one another on one rank
  if (size.keeps_vae && configs.takes_pictures)
    w.kept_vae_encoder = of_a_copy(encoder_resident_bytes(configs.vae, size), size, w.layout.vae_ranks);
  w.vae = vae_of(configs, size, w.layout.vae_ranks, ranks_here);
  w.kept.steps = Bytes(cells) * (configs.vae.z_dim * kFloat * size.dumped_latents * size.videos);
  w.kept.frames = Bytes(size.height * size.width * 3) * size.kept_frame_bytes * (size.frames * size.videos);
  w.conditions = conditions_of(configs, size, w.layout.vae_ranks, ranks_here, cells, frame_cells);
  return w;
}

}  // namespace zoetrope::wan
