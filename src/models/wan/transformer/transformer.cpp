#include "models/wan/transformer/transformer.h"

#include <cmath>
#include <string>

#include "base/error.h"
#include "kernels/pointwise/pointwise.h"
#include "models/wan/transformer/state.h"
#include "trace/trace.h"

namespace zoetrope::wan {

TokenGrid token_grid(const TransformerConfig& config, const Shape& latent) {
  ZT_CHECK(latent.rank() == 3, "latent size is {}", latent.to_string());
  const auto& patch = config.patch_size;
  for (int axis = 0; axis < 3; ++axis) {
    const int64_t cell = patch[static_cast<size_t>(axis)];
    if (latent[axis] < 1 || latent[axis] % cell != 0) {
      fail(
          "latents of {} cells (frames, height, width) cannot be cut into patches of {}×{}×{}; {} must be a multiple "
          "of {}",
          latent.to_string(), patch[0], patch[1], patch[2], latent[axis], cell);
    }
    if (latent[axis] / cell > config.rope_max_seq_len) {
      fail("latents of {} cells are {} patches along one axis, but the model knows {} positions", latent.to_string(),
           latent[axis] / cell, config.rope_max_seq_len);
    }
  }
  return {latent[0] / patch[0], latent[1] / patch[1], latent[2] / patch[2]};
}

void Transformer::State::plan_cross() {
  if (context == nullptr || batch == 0) return;
  ZT_CHECK(context->batch() == batch, "{} prompts for a batch of {}", context->batch(), batch);
  cross.clear();
  for (size_t source = 0; source < context->sources(); ++source) {
    kernels::FlashProblem problem;
    problem.key_tokens = context->rows(source);
    problem.heads = weights->heads();
    problem.head_dim = config.attention_head_dim;
    problem.dtype = dtype;
    problem.scale = 1.0f / std::sqrt(static_cast<float>(config.attention_head_dim));
    problem.mask = context->key_lengths(source).empty() ? kernels::MaskKind::kNone : kernels::MaskKind::kKeyLengths;
    const int64_t whole = chunk_rows(tokens_local);
    problem.query_tokens = whole;
    cross.push_back({kernels::FlashAttention(problem), {}});
    if (tokens_local == 0 || tokens_local % whole == 0) continue;
    problem.query_tokens = tokens_local % whole;
    cross.back().last.emplace(problem);
  }
}

// Runs the blocks, or adds their stored result to x.
void Transformer::State::pass_blocks(IndexRange samples, Blocks what, const Probe& probe) {
  if (what == Blocks::kLeaveOut) return;
  if (what == Blocks::kCompute) return run_blocks(samples, probe);
  const TensorView x = stream_of(samples), kept = buffers.residual.view().slice(0, samples.begin, samples.end);
  if (what == Blocks::kReuse) return kernels::gated_add(stream, x, kept, {}, x);
  copy(stream, kept, x);
  run_blocks(samples, probe);
  const TensorView minus(buffers.minus_one.view().raw(), DType::kF32, {x.extent(0), 1, x.extent(2)}, {0, 0, 1});
  kernels::gated_add(stream, x, kept, minus, kept);
}

// Every block on one attention group of samples. VACE: the control stream's blocks in between, each right after
// the block that its hint follows.
void Transformer::State::run_blocks(IndexRange samples, const Probe& probe) {
  if (config.vace()) begin_control(samples, probe);
  const TensorView x = stream_of(samples);
  std::string label;
  size_t control = 0;
  for (size_t i = 0; i < static_cast<size_t>(config.num_layers); ++i) {
    label.assign("block ").append(std::to_string(i));
    {
      const trace::Span span(stream.lane(), label.c_str());
      run_block({weights->blocks[i], i, samples, x}, probe ? "block." + std::to_string(i) : std::string(), probe);
    }
    if (config.face && static_cast<int64_t>(i) % config.face->every == 0)
      add_face(samples, i / static_cast<size_t>(config.face->every), probe);
    if (control == config.vace_layers.size() || config.vace_layers[control] != static_cast<int64_t>(i)) continue;
    run_control(samples, control, probe);
    add_hint(samples, control++, probe);
  }
}

Transformer::Transformer(std::shared_ptr<const TransformerWeights> weights, Stream& stream, encoders::PartialSum* sum)
    : state_(std::make_unique<State>(std::move(weights), stream, sum)) {}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;

const TransformerConfig& Transformer::config() const { return state_->config; }
DType Transformer::dtype() const { return state_->dtype; }
double Transformer::weights_wait_seconds() const { return state_->weights_wait_seconds; }
void Transformer::prepare(const Shape& latent, int64_t batch, attention::ContextAttention& attention,
                          const TransformerExtras& extras) {
  State& s = *state_;
  const TokenGrid grid = token_grid(s.config, latent);
  const attention::Problem& problem = attention.problem();
  ZT_CHECK(problem.batch > 0 && batch % problem.batch == 0 && problem.tokens == grid.tokens() &&
               problem.heads == s.weights->heads() && problem.head_dim == s.config.attention_head_dim &&
               problem.dtype == s.dtype,
           "attention was planned for another model or size");
  s.batch = batch;
  s.group = problem.batch;
  s.latent = latent;
  s.grid = grid;
  s.attention = &attention;
  s.tokens = attention.tokens();
  s.tokens_local = s.tokens.size();
  s.rope = kernels::make_rope_table(s.config.attention_head_dim, grid.frames, grid.height, grid.width, s.tokens);
  s.most_timesteps = extras.timesteps > 0 ? extras.timesteps : batch;
  s.buffers.book(s.config, {.tokens = s.tokens_local,
                            .batch = batch,
                            .group = s.group,
                            .timesteps = s.most_timesteps,
                            .keeps_residual = extras.keeps_residual,
                            .frames = grid.frames,
                            .dtype = s.dtype,
                            .tensor = s.weights->part.parts});
  if (extras.keeps_residual) std::fill_n(s.buffers.minus_one.data<float>(), s.buffers.minus_one.size(), -1.0f);
  s.control_latents = {};
  s.pose = {};
  s.chunk_slots.reserve(static_cast<size_t>(s.weights->heads()));
  {
    const Arena::Scope scope(s.stream.scratch());  // books it
    s.stream.scratch().allocate(static_cast<size_t>(
        transformer_scratch_bytes(s.config, s.tokens_local, s.dtype, s.stream.team().size(), s.weights->part.parts)));
  }
  if (s.context != nullptr && s.context->batch() != batch) s.context.reset();
  s.plan_cross();
}

void Transformer::set_context(std::shared_ptr<TextContext> context, const Probe& probe) {
  context->join(state_->stream, probe, state_->sum);
  state_->context = std::move(context);
  state_->plan_cross();
}

void Transformer::set_context(const TensorView& text, std::span<const int64_t> key_lengths, const Probe& probe,
                              const TensorView& image) {
  set_context(std::make_shared<TextContext>(state_->weights, text, key_lengths, image), probe);
}

void Transformer::set_control(const TensorView& latents, std::span<const float> scales) {
  State& s = *state_;
  ZT_CHECK(s.attention != nullptr, "set_control() before prepare()");
  if (!s.config.vace()) fail("the transformer takes no control video; VACE models do");
  const Shape full{s.batch, s.config.vace_in_channels, s.latent[0], s.latent[1], s.latent[2]};
  Shape wanted = full;
  if (latents.rank() == 5) wanted[2] = latents.extent(2);
  if (!(latents.shape() == wanted) || latents.extent(2) < 1 || latents.extent(2) > full[2] ||
      latents.extent(2) % s.config.patch_size[0] != 0) {
    fail("control latents are {}, but the transformer takes {} or fewer frames (the third)",
         latents.shape().to_string(), full.to_string());
  }
  if (scales.size() != s.config.vace_layers.size()) {
    fail("{} control scales, but the transformer takes {}, one for each of its control layers", scales.size(),
         s.config.vace_layers.size());
  }
  s.control_latents = latents;
  s.control_scales = scales;
}

void Transformer::set_animation(const TensorView& pose, const TensorView& face) {
  State& s = *state_;
  ZT_CHECK(s.attention != nullptr, "set_animation() before prepare()");
  if (!s.config.face) fail("the transformer takes no pose and no face; Animate models do");
  const Shape pose_shape{pose.rank() == 5 && pose.extent(0) == 1 ? 1 : s.batch, s.config.out_channels, s.latent[0] - 1,
                         s.latent[1], s.latent[2]};
  const Shape face_shape{s.batch, s.grid.frames - 1, s.config.face->tokens(), s.config.inner_dim()};
  if (!(pose.shape() == pose_shape)) {
    fail("pose latents are {}, but the transformer takes {}", pose.shape().to_string(), pose_shape.to_string());
  }
  // A face video of another length would be paired with the wrong frames.
  if (!(face.shape() == face_shape)) {
    fail("face tokens are {}, but the transformer takes {}", face.shape().to_string(), face_shape.to_string());
  }
  ZT_CHECK(face.dtype() == s.dtype && face.contiguous());
  s.pose = pose;
  s.project_faces(face);
}

void Transformer::State::take_timesteps(const Timesteps& of) {
  const auto values = static_cast<int64_t>(of.values.size()), entries = static_cast<int64_t>(of.index.size());
  ZT_CHECK(0 < values && values <= most_timesteps, "{} timesteps, but prepare() was told of {}", values,
           most_timesteps);
  ZT_CHECK(entries == batch || entries == batch * attention->problem().tokens || (entries == 0 && values == batch),
           "{} timesteps and {} indices into them for {} samples of {} tokens", values, entries, batch,
           attention->problem().tokens);
  for (const int32_t entry : of.index) ZT_CHECK(0 <= entry && entry < values, "timestep {} of {}", entry, values);
  timesteps = values;
  time_index = of.index;
}

Transformer::TimeEmbedding Transformer::embed_time(const Timesteps& timesteps) {
  State& s = *state_;
  ZT_CHECK(s.attention != nullptr, "embed_time() before prepare()");
  s.take_timesteps(timesteps);
  return s.embed_time_in_float(timesteps);
}

void Transformer::State::require_blocks(std::span<const Blocks> blocks) const {
  if (blocks.empty()) return;
  ZT_CHECK(static_cast<int64_t>(blocks.size()) == batch, "blocks of {} samples for {}", blocks.size(), batch);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const bool needs_residual = blocks[b] == Blocks::kComputeAndKeep || blocks[b] == Blocks::kReuse;
    ZT_CHECK(!needs_residual || buffers.residual, "prepare() was not told to keep a residual");
    ZT_CHECK(blocks[b] == blocks[b - b % static_cast<size_t>(group)], "samples that attention takes together differ");
  }
}

void Transformer::forward(const TensorView& latents, const Timesteps& timesteps, const TensorView& velocity_tokens,
                          const Probe& probe, std::span<const Blocks> blocks) {
  State& s = *state_;
  ZT_CHECK(s.attention != nullptr && s.context != nullptr, "forward() before prepare() and set_context()");
  ZT_CHECK(!s.config.vace() || s.control_latents, "forward() of VACE before set_control()");
  ZT_CHECK(!s.config.animate() || s.pose, "forward() of Animate before set_animation()");
  ZT_CHECK(latents.shape() == Shape({s.batch, s.config.in_channels, s.latent[0], s.latent[1], s.latent[2]}),
           "latents are {}", latents.shape().to_string());
  ZT_CHECK(velocity_tokens.shape() == Shape({s.batch, s.tokens_local, s.config.patch_output_dim()}) &&
           velocity_tokens.dtype() == s.dtype && velocity_tokens.contiguous());
  s.take_timesteps(timesteps);
  s.require_blocks(blocks);
  s.embed_tokens(latents, probe);
  if (s.config.animate()) s.add_pose(probe);
  s.embed_time(timesteps, probe);
  s.modulate();
  for (int64_t b = 0; b < s.batch; b += s.group) {
    const IndexRange samples{b, b + s.group};
    const std::string label = fmt::format("blocks of sample {}", b);
    const trace::Span span(s.group < s.batch ? s.stream.lane() : trace::Lane(), label.c_str());
    s.pass_blocks(samples, blocks.empty() ? Blocks::kCompute : blocks[static_cast<size_t>(b)], probe);
  }
  s.project_out(velocity_tokens, probe);
}

}  // namespace zoetrope::wan
