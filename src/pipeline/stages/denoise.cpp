#include "pipeline/stages/denoise.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "attention/counters.h"
#include "attention/plan.h"
#include "base/cancel.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/index_range.h"
#include "models/wan/transformer/face_encoder.h"
#include "models/wan/transformer/patchify.h"
#include "parallel/shards.h"
#include "pipeline/ranks/row_segments.h"
#include "pipeline/stages/face_ranks.h"
#include "pipeline/stages/finite.h"
#include "pipeline/stages/guidance.h"
#include "pipeline/stages/phases.h"
#include "tensor/copy_of.h"
#include "tensor/finite.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char *kStepTimes = "step times", *kShards = "shard weights";

std::span<float> values(const TensorView& tensor) { return {tensor.data<float>(), static_cast<size_t>(tensor.size())}; }

// All branches see the same: [1, …] as [batch, …], with a batch stride of zero.
TensorView repeated(const TensorView& one, int64_t batch) {
  Shape shape = one.shape(), strides;
  for (int axis = 0; axis < one.rank(); ++axis) strides.append(axis == 0 ? 0 : one.stride(axis));
  shape[0] = batch;
  return {one.raw(), one.dtype(), shape, strides};
}

attention::Problem attention_problem(const Denoiser::Setup& setup, int64_t batch) {
  const wan::TransformerConfig& config = setup.model.experts[0].config;
  attention::Problem problem;
  problem.batch = batch;
  problem.tokens = setup.plan.tokens;
  problem.heads = config.num_attention_heads / setup.layout.tensor;
  problem.head_dim = config.attention_head_dim;
  problem.dtype = setup.plan.dtype;
  return problem;
}

std::unique_ptr<comm::Communicator> split_context(comm::Communicator& world, const parallel::ParallelLayout& layout) {
  const int rank = world.rank();
  if (!layout.sharded) return world.split(rank, 0);
  return world.split(layout.rank_of(layout.data_index(rank), 0, layout.tensor_index(rank)), layout.context_index(rank));
}

std::unique_ptr<comm::Communicator> split_data(comm::Communicator& world, const parallel::ParallelLayout& layout) {
  const int rank = world.rank();
  return world.split(layout.rank_of(0, layout.context_index(rank), layout.tensor_index(rank)), layout.data_index(rank));
}

std::unique_ptr<comm::Communicator> split_tensor(comm::Communicator& world, const parallel::ParallelLayout& layout) {
  const int rank = world.rank();
  return world.split(layout.rank_of(layout.data_index(rank), layout.context_index(rank), 0), rank);
}

}  // namespace

std::vector<wan::Blocks> blocks_of_step(sampling::StepWork work, bool keeps_residual, int64_t samples) {
  std::vector<wan::Blocks> all(static_cast<size_t>(samples), wan::Blocks::kCompute);
  if (keeps_residual) {
    const bool reuses = work == sampling::StepWork::kReuseResidual;
    std::fill(all.begin(), all.end(), reuses ? wan::Blocks::kReuse : wan::Blocks::kComputeAndKeep);
  }
  if (work == sampling::StepWork::kConditionalOnly) all.back() = wan::Blocks::kLeaveOut;
  return all;
}

Denoiser::Denoiser(const Setup& setup, comm::Communicator& world, Stream& stream, trace::Timing& timing)
    : setup_(setup),
      layout_(setup.layout),
      stream_(stream),
      timing_(timing),
      world_(world),
      context_(split_context(world, setup.layout)),
      data_(split_data(world, setup.layout)),
      tensor_(split_tensor(world, setup.layout)),
      sum_(*tensor_, PartialSumRanks::kTransformer),
      reuse_(setup.plan, world, stream),
      solver_(sampling::Solver::create(setup.plan.solver)),
      input_(setup.conditions, setup.plan.latents()) {
  const trace::Timing::Scope scope(timing_, phases::kPrepare);
  const int64_t batch = local_samples();
  const RunPlan& plan = setup.plan;
  if (setup.balances_shards) {
    if (setup_.pricing) balance_ = std::make_unique<ShardBalance>(std::move(*setup_.pricing));
    balances_ = balance_ != nullptr;
    world.broadcast(0, &balances_, sizeof balances_, kShards);
  }
  plan_attention();
  plan_timesteps();
  const int64_t width = setup.model.experts[0].config.patch_output_dim();
  const Shape latent = plan.latents();
  gathered_ = Tensor(plan.dtype, {samples(), plan.tokens, width});
  branch_ = Tensor(DType::kF32, {samples(), latent[1], latent[2], latent[3], latent[4]});
  velocity_ = Tensor(DType::kF32, {plan.videos, latent[1], latent[2], latent[3], latent[4]});
  const int64_t channels = setup.model.experts[0].config.in_channels;
  if (plan.videos > 1) batch_input_ = Tensor(DType::kF32, {batch, channels, latent[2], latent[3], latent[4]});
}

void Denoiser::plan_attention() {
  const int64_t batch = local_samples();
  attention::Strategy strategy = setup_.strategy;
  strategy.layout = parallel::ContextRequest::exactly(layout_.of_sequence());
  attention_ = std::make_unique<attention::ContextAttention>(
      attention::plan(attention_problem(setup_, reuse_.branches_apart() ? 1 : batch), strategy, *context_, stream_));
  const int64_t width = setup_.model.experts[0].config.patch_output_dim();
  local_ = Tensor(setup_.plan.dtype, {batch, attention_->tokens().size(), width});
}

// One for each sample here; or, where the first tokens are clean, the step's and zero.
void Denoiser::plan_timesteps() {
  timesteps_.assign(static_cast<size_t>(local_samples()), 0);
  const int64_t clean = setup_.conditions.clean_frames();
  if (clean == 0) return;
  constexpr int32_t kStep = 0, kClean = 1;
  timesteps_.assign(2, 0);
  const int64_t tokens = setup_.plan.tokens;
  token_time_.assign(static_cast<size_t>(local_samples() * tokens), kStep);
  const int64_t clean_tokens = tokens / setup_.plan.latent[0] * clean;  // frames come one after another
  for (int64_t b = 0; b < local_samples(); ++b) std::fill_n(token_time_.begin() + b * tokens, clean_tokens, kClean);
}

const char* Denoiser::branches_text() const {
  if (layout_.data == 1 && setup_.plan.guided) return "branches: conditional, unconditional";
  return layout_.data_index(world_.rank()) == 0 ? "branch: conditional" : "branch: unconditional";
}

int64_t Denoiser::samples() const { return setup_.plan.samples(); }
int64_t Denoiser::local_samples() const { return samples() / layout_.data; }

void Denoiser::load_first_expert(int64_t done, const std::function<bool()>& cancelled) {
  const int64_t step = std::min(done, solver_->steps() - 1);
  load_expert(setup_.plan.expert_at(solver_->timesteps()[static_cast<size_t>(step)]), cancelled);
}

void Denoiser::load_expert(int expert, const std::function<bool()>& cancelled) {
  if (expert == expert_) return;
  if (setup_.step_timeout) world_.set_timeout(comm::RankOptions().timeout_seconds);
  // The previous expert goes first: two would be twice the memory.
  if (expert_weights_ != nullptr) {
    expert_weights_->settle();
    setup_.weights.finish_cache(expert_, cancelled);
    setup_.weights.report(expert_);
  }
  transformer_.reset();
  expert_weights_.reset();
  text_.reset();
  {
    const trace::Timing::Scope scope(timing_, phases::kLoadExpert[expert]);
    expert_weights_ = setup_.weights.load(expert, cancelled);
  }
  prepare_expert(expert);
  if (setup_.conditions.face.count > 0) set_animation(expert, cancelled);
  expert_ = expert;
  setup_.weights.report(expert);
}

void Denoiser::prepare_expert(int expert) {
  const trace::Timing::Scope scope(timing_, phases::kPrepare);
  transformer_ = std::make_unique<wan::Transformer>(expert_weights_, stream_, &sum_);
  prepare_transformer();
  const int data = layout_.data_index(world_.rank());
  text_ = setup_.contexts.of(expert, data, layout_.tensor_index(world_.rank())).get([&] {
    const PromptEmbeddings& prompts = setup_.prompts;
    const TensorView rows = prompts.rows.view().slice(0, data * local_samples(), (data + 1) * local_samples());
    auto made = std::make_shared<SharedContext>();
    made->rows = copy_of(rows);
    if (setup_.conditions.image_rows) made->image_rows = copy_of(setup_.conditions.image_rows);
    std::vector<int64_t> lengths;
    if (setup_.mask_padding_tokens) {
      lengths.assign(prompts.lengths.begin() + data * local_samples(),
                     prompts.lengths.begin() + (data + 1) * local_samples());
    }
    made->context = std::make_unique<wan::TextContext>(expert_weights_, made->rows, lengths, made->image_rows);
    return made;
  });
  Probe probe;
  if (setup_.observer) {
    observe_prompt(expert);
    probe = [&](std::string_view name, const TensorView& value) { setup_.observer(prompt_of(expert), name, value); };
  }
  // The alias keeps the rows alive as long as the transformer holds the context.
  transformer_->set_context(std::shared_ptr<wan::TextContext>(text_, text_->context.get()), probe);
  if (balance_) balance_->leave_out_next();
}

void Denoiser::prepare_transformer() {
  wan::TransformerExtras extras;
  extras.timesteps = static_cast<int64_t>(timesteps_.size());
  extras.keeps_residual = reuse_.keeps_residual();
  transformer_->prepare(setup_.plan.latent, local_samples(), *attention_, extras);
  if (setup_.conditions.control)
    transformer_->set_control(repeated(setup_.conditions.control, local_samples()), setup_.conditions.control_scale);
}

void Denoiser::observe_prompt(int expert) const {
  const auto show = [&](const char* name, const TensorView& value) {
    if (value) setup_.observer(prompt_of(expert), name, value);
  };
  show("text", text_->rows);
  show("image", text_->image_rows);
  show("control", setup_.conditions.control);
  if (!setup_.conditions.control_scale.empty()) {
    const std::vector<float>& scales = setup_.conditions.control_scale;
    const Tensor values(DType::kF32, {std::ssize(scales)});
    std::copy(scales.begin(), scales.end(), values.data<float>());
    show("control_scales", values);
  }
  show("pose", setup_.conditions.pose);
  show("given_frames", setup_.conditions.given_frames);
  if (!setup_.mask_padding_tokens) return;
  const int64_t first = setup_.layout.data_index(world_.rank()) * local_samples();
  const Tensor lengths(DType::kI64, {local_samples()});
  std::copy_n(setup_.prompts.lengths.begin() + first, local_samples(), lengths.data<int64_t>());
  show("lengths", lengths);
}

void Denoiser::change_shards(const std::vector<int>& weights) {
  const trace::Timing::Scope scope(timing_, phases::kPrepare);
  const trace::Span span(stream_.lane(), "change of shards");
  layout_.context.shard_weights = weights;
  attention::add(attention_->counters(), attention_before_);
  // These go first: two would be twice the memory. The transformer is prepared again before it uses them.
  attention_.reset();
  local_ = Tensor();
  plan_attention();
  prepare_transformer();
  if (face_) transformer_->set_animation(setup_.conditions.pose, face_);
}

double Denoiser::waited_seconds() const {
  return attention::traffic(attention_->counters()).wait_seconds + tensor_->counters().wait_seconds +
         transformer_->weights_wait_seconds();
}

void Denoiser::balance_shards(double seconds, double waited) {
  using RankStep = ShardBalance::RankStep;
  const RankStep mine{seconds - waited, waited};
  std::vector<RankStep> ranks(static_cast<size_t>(world_.size()));
  world_.all_gather(&mine, ranks.data(), sizeof mine, kStepTimes);
  std::vector<int> weights(static_cast<size_t>(layout_.context.ranks()) + 1, 0);  // the first: whether they change
  if (balance_) {
    if (const std::optional<std::vector<int>> wanted = balance_->after_step(ranks)) {
      weights.assign(weights.size(), 1);
      std::copy(wanted->begin(), wanted->end(), weights.begin() + 1);
    }
  }
  world_.broadcast(0, weights.data(), weights.size() * sizeof(int), kShards);
  if (weights.front() == 0) return;
  weights.erase(weights.begin());
  next_weights_ = parallel::reduced(weights);
}

void Denoiser::set_animation(int expert, const std::function<bool()>& cancelled) {
  const trace::Timing::Scope scope(timing_, phases::kFaceEncoder);
  const int64_t conditional = setup_.plan.videos, first = layout_.data_index(world_.rank()) * local_samples();
  const int64_t unconditional = std::clamp<int64_t>(first + local_samples() - conditional, 0, local_samples());
  const FaceFrames& frames = setup_.conditions.face;
  // With guidance some rank shows a black face; its vector is one more of those that ranks share out.
  const bool black = setup_.plan.guided;
  const Tensor vectors = vectors_of_face(frames, black, expert_weights_->config.face->vector_dim, world_,
                                         [&](const TensorView& pixels, const TensorView& vector) {
                                           stop_if_cancelled(cancelled, "while encoding the face");
                                           wan::encode_motion(stream_, *expert_weights_, pixels, vector);
                                         });
  face_ =
      wan::encode_faces(stream_, *expert_weights_, vectors.view().slice(0, 0, frames.count),
                        black ? vectors.view().select(0, frames.count) : TensorView(), local_samples(), unconditional);
  if (setup_.observer) setup_.observer(prompt_of(expert), "face", face_);
  transformer_->set_animation(setup_.conditions.pose, face_);
}

// Tokens of all context ranks, then the branches of all data ranks, into gathered_.
void Denoiser::gather(int64_t local) {
  const int64_t mine = layout_.data_index(world_.rank()) * local_samples();
  const parallel::ContextLayout layout = layout_.of_sequence();
  const auto tokens_of = [&](int rank) { return parallel::token_shard(setup_.plan.tokens, layout, rank); };
  for (int64_t b = 0; b < local; ++b) {
    const TensorView part = local_.view().select(0, b), whole = gathered_.view().select(0, mine + b);
    context_->all_gather_v({context_->rank(), part.raw(), part.bytes()},
                           row_segments(whole, context_->size(), tokens_of), "velocity gather");
  }
  if (data_->size() == 1) return;
  const auto samples_of = [&](int rank) { return split_range(samples(), data_->size(), rank); };
  data_->all_gather_in_place(row_segments(gathered_, data_->size(), samples_of), "guidance gather");
}

sampling::StepDecision Denoiser::decide(int64_t step, double timestep, const TensorView& latents) {
  return reuse_.decide(step, timestep, latents, [&](sampling::StepDistance distance) {
    const std::vector<float> value{static_cast<float>(timestep)};
    const std::vector<int32_t> of(static_cast<size_t>(local_samples()), 0);
    const wan::Transformer::TimeEmbedding embedding = transformer_->embed_time({value, of});
    return distance == sampling::StepDistance::kTimeEmbedding ? embedding.temb : embedding.timestep_proj;
  });
}

// Every branch sees its video's latents.
TensorView Denoiser::input_of(const TensorView& latents) {
  if (!batch_input_) return repeated(input_.of(latents), local_samples());
  const int64_t videos = setup_.plan.videos;
  for (int64_t video = 0; video < videos; ++video) {
    const TensorView one = input_.of(latents.slice(0, video, video + 1), video);
    for (int64_t sample = video; sample < local_samples(); sample += videos)
      copy(stream_, batch_input_.view().slice(0, sample, sample + 1), one);
  }
  return batch_input_;
}

void Denoiser::velocity(const TensorView& latents, double timestep, const sampling::StepDecision& decision,
                        const Probe& probe) {
  if (decision.work == sampling::StepWork::kReuseVelocity) return;  // velocity_ still has it
  const int64_t batch = local_samples();
  std::fill_n(timesteps_.begin(), token_time_.empty() ? timesteps_.size() : 1, static_cast<float>(timestep));
  const TensorView input = input_of(latents);
  const std::vector<wan::Blocks> blocks = blocks_of_step(decision.work, reuse_.keeps_residual(), batch);
  const bool one_branch = decision.work == sampling::StepWork::kConditionalOnly;
  {
    const double waited = waited_seconds();
    const auto begin = trace::Clock::now();
    const trace::Span span(stream_.lane(), one_branch ? "branch: conditional" : branches_text());
    transformer_->forward(input, {timesteps_, token_time_}, local_, probe, blocks);
    if (balances_ && decision.work == sampling::StepWork::kFull) {
      balance_shards(std::chrono::duration<double>(trace::Clock::now() - begin).count(), waited_seconds() - waited);
    }
  }
  gather(one_branch ? 1 : batch);
  const int64_t made = one_branch ? 1 : samples();
  if (setup_.check_finite && first_non_finite(gathered_.view().slice(0, 0, made))) {
    fail_not_finite(input, blocks, probe);
  }
  if (one_branch) reuse_.weigh_difference(stream_, branch_, decision, velocity_);
  wan::unpatchify(stream_, gathered_.view().slice(0, 0, made), setup_.model.experts[0].config.patch_size,
                  branch_.view().slice(0, 0, made));
  if (setup_.plan.guided) {
    const int64_t videos = setup_.plan.videos;
    const TensorView conditional = branch_.view().slice(0, 0, videos);
    TensorView unconditional = branch_.view().slice(0, videos, 2 * videos);
    if (one_branch) {
      reuse_.add_conditional(stream_, conditional, setup_.plan.dtype, velocity_);
      unconditional = velocity_;
    }
    guide(values(conditional), values(unconditional), setup_.plan.guidance[expert_], setup_.plan.dtype,
          values(velocity_));
  } else {
    copy(stream_, velocity_, branch_);
  }
}

// Computes the step again and checks every intermediate value. All ranks come here together, for they have gathered
// the same velocity.
void Denoiser::fail_not_finite(const TensorView& input, std::span<const wan::Blocks> blocks, const Probe& probe) {
  const bool spoiled = first_non_finite(local_).has_value();
  FirstSpoiled first;
  const Probe look = [&](std::string_view name, const TensorView& value) {
    observe(probe, name, value);
    first.look(name, value);
  };
  transformer_->forward(input, {timesteps_, token_time_}, local_, look, blocks);
  first.add("the velocity", spoiled);  // where the second time went well
  const FirstSpoiled::Place place = first.place(world_);
  const Expert& files = setup_.model.experts[static_cast<size_t>(expert_)];
  const std::optional<std::string> weight = spoiled_weight(files.weights, setup_.plan.dtype, &world_);
  fail("{}, rank {}: NaN or infinity comes first in {} of {}, {}; {}", step_, place.rank, place.name,
       expert_name(expert_), weight ? "from " + *weight : "whose weights are finite", kGoOnAnyway);
}

DenoiseState Denoiser::state() const {
  DenoiseState state;
  state.solver = solver_->state();
  reuse_.save(state);
  if (reuse_.reuses(sampling::StepWork::kReuseVelocity)) state.velocity = copy_of(velocity_);
  if (reuse_.branches_apart()) state.branches = copy_of(branch_);
  return state;
}

void Denoiser::restore(const DenoiseState& from, size_t size) {
  solver_->restore(from.solver, size);
  reuse_.restore(from);
  const auto put = [&](const Tensor& kept, const Tensor& into) {
    if (!kept) return;
    if (!(kept.shape() == into.shape()))
      fail("the state of a step cache is {} instead of {}", kept.shape().to_string(), into.shape().to_string());
    copy(stream_, into, kept);
  };
  put(from.velocity, velocity_);
  put(from.branches, branch_);
  if (reuse_.keeps_residual()) missing_residual_ = &from;
}

void Denoiser::compute_full_step_again(const Probe& probe) {
  const DenoiseState& from = *std::exchange(missing_residual_, nullptr);
  if (from.full_step < 0 || from.full_step >= solver_->steps() || !from.full_latents)
    fail("the state of a step cache lacks its last full step");
  velocity(from.full_latents, solver_->timesteps()[static_cast<size_t>(from.full_step)], {}, probe);
}

void Denoiser::begin_part(const std::string& part) {
  world_.set_step(part);
  context_->set_step(part);
  data_->set_step(part);
  tensor_->set_step(part);
}

void Denoiser::run(const TensorView& latents, const Hooks& hooks, const DenoiseState* from) {
  sampling::Solver* const solver = solver_.get();
  const int64_t steps = solver->steps();
  if (from != nullptr) restore(*from, static_cast<size_t>(latents.size()));
  const int64_t layers =
      setup_.model.experts[0].config.num_layers * (reuse_.branches_apart() ? local_samples() : int64_t{1});
  for (int64_t i = from != nullptr ? from->solver.next : 0; i < steps; ++i) {
    const double timestep = solver->timesteps()[static_cast<size_t>(i)];
    load_expert(setup_.plan.expert_at(timestep), hooks.cancelled);
    setup_.weights.require_unchanged(expert_);
    step_ = fmt::format("step {} of {}", i + 1, steps);
    begin_part(step_);
    // Asked before the step and between its blocks: a step of a large model takes minutes.
    const std::string in_step = "in " + step_;
    stop_if_cancelled(hooks.cancelled, in_step);
    int64_t layer = 0;
    const Probe progress = [&](std::string_view tensor, const TensorView&) {
      stop_if_cancelled(hooks.cancelled, in_step);
      constexpr std::string_view kBlock = "block.";
      if (!tensor.starts_with(kBlock) || tensor.find('.', kBlock.size()) != std::string_view::npos) return;
      begin_part(fmt::format("{}, after layer {} of {}", step_, ++layer, layers));
      if (hooks.layer) hooks.layer(layer, layers);
    };
    const Probe probe = [&](std::string_view tensor, const TensorView& value) {
      if (setup_.observer) setup_.observer(i, tensor, value);
      progress(tensor, value);
    };
    const trace::Span span(stream_.lane(), step_.c_str());
    auto begin = trace::Clock::now();
    const sampling::StepDecision decision = decide(i, timestep, latents);
    const bool measures = reuse_.measures_reuse(i, decision);
    if (missing_residual_ != nullptr && (measures || decision.work == sampling::StepWork::kReuseResidual)) {
      compute_full_step_again(progress);
      layer = 0;
    }
    missing_residual_ = nullptr;
    if (measures) {  // before shards change, with which the residual goes
      velocity(latents, timestep, {sampling::StepWork::kReuseResidual}, progress);
      reuse_.keep_reused(velocity_);
    }
    const double apart = measures ? std::chrono::duration<double>(trace::Clock::now() - begin).count() : 0;
    if (next_weights_ && decision.work == sampling::StepWork::kFull) {
      const auto change = trace::Clock::now();
      change_shards(*std::exchange(next_weights_, std::nullopt));
      begin += trace::Clock::now() - change;  // which is not the step's
    }
    if (setup_.observer) {
      auto work = static_cast<int32_t>(decision.work);
      setup_.observer(i, "work", TensorView(&work, DType::kI32, {1}));
      std::vector<int> shards = shard_weights();
      if (!shards.empty())
        setup_.observer(i, "shard_weights", TensorView(shards.data(), DType::kI32, {std::ssize(shards)}));
      setup_.observer(i, "input", input_of(latents).slice(0, 0, setup_.plan.videos));
    }
    velocity(latents, timestep, decision, probe);
    if (measures) reuse_.measure_reuse(velocity_);
    if (setup_.observer) setup_.observer(i, "velocity", velocity_);
    solver->step(i, values(velocity_), values(latents));
    if (setup_.observer) setup_.observer(i, "latents", latents);
    if (setup_.check_finite) require_finite(latents, step_ + ", every rank: the tensor of latents");
    const double seconds = std::chrono::duration<double>(trace::Clock::now() - begin).count();
    timing_.add(phases::kDenoise, seconds);
    reuse_.count(i, decision, seconds, apart);
    if (setup_.step_timeout) world_.set_timeout(*setup_.step_timeout);
    if (hooks.step)
      hooks.step({i, timestep, solver->sigmas()[static_cast<size_t>(i) + 1], velocity_, latents, seconds});
  }
  for (int64_t video = 0; video < setup_.plan.videos; ++video)
    put_given_frames(setup_.conditions, latents.slice(0, video, video + 1));
  if (setup_.step_timeout) world_.set_timeout(comm::RankOptions().timeout_seconds);
  expert_weights_->settle();
  setup_.weights.require_unchanged(expert_);
  setup_.weights.finish_cache(expert_, hooks.cancelled);
  setup_.weights.report(expert_);
}

attention::Counters Denoiser::attention_counters() const {
  attention::Counters all = attention_before_;
  attention::add(attention_->counters(), all);
  return all;
}

}  // namespace zoetrope::pipeline
