// One pass of a run over the ranks of a communicator: stage after stage, segment after segment.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "attention/counters.h"
#include "base/error.h"
#include "comm/gather_trace.h"
#include "comm/launcher.h"
#include "io/weights/tensor_file.h"
#include "models/sampling/random.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/memory_report.h"
#include "pipeline/outputs/dump.h"
#include "pipeline/planning/step_cache_settings.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/predicted_report.h"
#include "pipeline/run.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/segments.h"
#include "pipeline/short_summary.h"
#include "pipeline/stages/condition_ranks.h"
#include "pipeline/stages/decode_frames.h"
#include "pipeline/stages/denoise.h"
#include "pipeline/stages/finite.h"
#include "pipeline/stages/phases.h"
#include "pipeline/stages/prompt_context.h"
#include "pipeline/stages/prompt_ranks.h"
#include "tensor/copy_of.h"

namespace zoetrope::pipeline {
namespace {

// In a file of `latents`, where it has one for each segment.
std::string noise_name(int64_t segment) {
  return segment == 0 ? "latents.init" : fmt::format("latents.init.{}", segment);
}

// Initial noise of a video, [1, C, T, h, w]: drawn as PyTorch does, or read from the user's file. One that has the
// first segment's alone leaves the first draw to the second, as in the reference.
void fill_noise(const GenerateOptions& options, sampling::TorchGenerator& generator, int64_t segment,
                const TensorView& noise) {
  const Shape& shape = noise.shape();
  const auto file = options.latents.empty() ? nullptr : io::TensorFile::open(options.latents);
  std::string name = noise_name(segment);
  if (!file || (segment > 0 && !file->contains(name))) {
    generator.randn(std::span<float>(noise.data<float>(), static_cast<size_t>(noise.size())));
    return;
  }
  if (!file->contains(name)) name = "segment.0.latents.init";  // of Animate's dumps
  if (!file->contains(name)) {
    if (file->tensors().size() != 1) {
      fail("latents={}: holds {} tensors and none is named latents.init", options.latents, file->tensors().size());
    }
    name = file->tensors().begin()->first;
  }
  const io::TensorInfo& info = file->info(name);
  if (info.dtype != DType::kF32 || !(info.shape == shape)) {
    fail("latents={}: tensor '{}' is {} {}, but this run needs F32 {}", options.latents, name, info.dtype_name,
         info.shape.to_string(), shape.to_string());
  }
  std::memcpy(noise.data<float>(), file->tensor(name).raw(), noise.bytes());
  if (options.check_finite) {
    require_finite(noise, fmt::format("latents={}: before the first step, tensor '{}'", options.latents, name));
  }
}

// Latents [videos, C, T, h, w] without those of reference images.
Tensor without_references(const TensorView& latents, int64_t references) {
  const TensorView video = latents.slice(2, references, latents.extent(2));
  Tensor kept = Tensor::uninitialized(DType::kF32, video.shape());
  Stream stream(1);
  copy(stream, kept, video);
  return kept;
}

void add_prompts(Dump& dump, const PromptEmbeddings& embeddings, int64_t video, int64_t videos) {
  const char* name = "prompt_embeds";
  for (int64_t at = video; at < std::ssize(embeddings.lengths); at += videos) {
    const int64_t length = embeddings.lengths[static_cast<size_t>(at)];
    dump.add(name, embeddings.rows.view().slice(0, at, at + 1).slice(1, 0, length));
    name = "negative_prompt_embeds";
  }
}

// For runs whose frames nobody wants but the next segment.
class NoFrames final : public FrameSink {
 public:
  void add_frame(const uint8_t*) override {}
  void finish() override {}
};

void add(const StepCacheReport& more, std::optional<StepCacheReport>& sum) {
  if (!sum) {
    sum = more;
    return;
  }
  sum->pattern += more.pattern;
  sum->reused += more.reused;
  sum->seconds_saved += more.seconds_saved;
  sum->reuse_error = std::max(sum->reuse_error, more.reuse_error);
}

// Phases that begin and end more than once take what their parts take.
void add_wholes(trace::Timing& timing) {
  timing.add(phases::kConditioning, phases::seconds_of(timing, phases::kConditionings));
  timing.add(phases::kInference, phases::seconds_of(timing, {phases::kConditioning, phases::kDenoise, phases::kJournal,
                                                             phases::kPreview, phases::kDecode}));
  timing.add(phases::kLoad, phases::seconds_of(timing, phases::kLoads));
}

}  // namespace

bool Run::uses_seed(const GenerateOptions& video) const {
  if (video.latents.empty()) return true;
  const auto file = io::TensorFile::open(video.latents);
  for (int64_t segment = 1; segment < plan_.segments.count; ++segment)
    if (!file->contains(noise_name(segment))) return true;
  return false;
}

// A pass that runs: what its stages share.
class Run::RunningPass {
 public:
  RunningPass(const Run& run, comm::Communicator& world, const Pass& pass, const Callbacks& callbacks)
      : run_(run),
        world_(world),
        pass_(pass),
        callbacks_(callbacks),
        stage_{run.options_, run.model_, run.plan_, pass.layout, callbacks, timing_, pass.trace},
        question_(run.memory_question(pass)),
        memory_(world, memory_plan(question_)),
        latents_(DType::kF32, {run.plan_.videos, run.plan_.channels, run.plan_.latent[0], run.plan_.latent[1],
                               run.plan_.latent[2]}) {
    for (const int64_t seed : pass.seeds) noise_.emplace_back(static_cast<uint64_t>(seed));
  }
  std::vector<Video> run();

 private:
  void denoise_segment(int64_t segment);
  void encode_prompts();
  Denoiser::Hooks step_hooks(int64_t segment, const Denoiser& denoiser, Preview& preview);
  void decode_segment(int64_t segment, const TensorView& latents);
  void skip_segment(int64_t segment);
  void draw_noise(int64_t segment);  // of every video, into the latents
  void take_latents(const RunRecord& from);
  std::string prefix_of(int64_t segment) const;  // of names in dumps
  DecodedPart part_of(int64_t segment) const;
  void reserve_frames(Output& output) const;
  void report(Video& result);
  void compare_with_plan(Video& result) const;
  // Rank 0's, where shards follow what is measured; none where no profile says what steps take.
  std::optional<ShardPricing> shard_pricing(const MemoryQuestion& question) const;

  // Where a run resumes; null in one that begins, and for the segments behind that place.
  const RunRecord* resumed_in(int64_t segment) const {
    const RunRecord* resumed = pass_.resumed();
    return resumed != nullptr && resumed->segment == segment ? resumed : nullptr;
  }
  Journal* journal() const { return pass_.journal != nullptr ? pass_.journal->journal.get() : nullptr; }  // rank 0's
  RunRecord record_of(int64_t segment) const {
    RunRecord record;
    record.segment = segment;
    record.latents = copy_of(latents_);
    if (tail_) record.tail = copy_of(tail_);
    record.step_cache = step_cache_;
    return record;
  }
  Dump& dump(int64_t video) const { return pass_.outputs[static_cast<size_t>(video)].dump; }
  Dumps dumps() const {
    std::vector<Dump*> all;
    for (Output& output : pass_.outputs) all.push_back(&output.dump);
    return Dumps(std::move(all));
  }
  TensorView latents_of(int64_t video) const { return latents_.view().slice(0, video, video + 1); }

  const Run& run_;
  comm::Communicator& world_;
  const Pass& pass_;
  const Callbacks& callbacks_;
  trace::Timing timing_;
  const Stage stage_;
  const MemoryQuestion question_;  // of this pass
  MemoryReport memory_;
  std::deque<sampling::TorchGenerator> noise_;  // of each video
  std::shared_ptr<const PromptEmbeddings> embeddings_;
  Tensor latents_;  // [videos, C, T, h, w], of a segment
  // Animate
  Character character_;
  Tensor tail_;  // [videos·V, H, W, 3] F32: what the next segment begins with, of one video after another
  // Of the transformer: as long as somebody holds them, the next segment does not read them again.
  std::shared_ptr<const void> weights_;

  std::vector<int> shard_weights_ = pass_.layout.of_sequence().shard_weights;  // of the last step
  int64_t steps_made_ = 0;                                                     // by this process
  attention::Counters attention_, attention_of_all_;                           // of this rank, of all ranks
  std::optional<StepCacheReport> step_cache_;
};

std::vector<Video> Run::run_once(comm::Communicator& world, const Pass& pass, const Callbacks& callbacks) const {
  return RunningPass(*this, world, pass, callbacks).run();
}

std::vector<Video> Run::RunningPass::run() {
  if (pass_.resumed() != nullptr) step_cache_ = pass_.resumed()->step_cache;
  for (const char* phase : {phases::kLoad, phases::kPrepare, phases::kInference, phases::kConditioning})
    timing_.declare(phase);
  std::vector<Video> results(run_.videos_.size());
  for (int64_t segment = 0; segment < run_.plan_.segments.count; ++segment) {
    const bool last = segment + 1 == run_.plan_.segments.count;
    if (pass_.resumed() != nullptr && segment < pass_.resumed()->segment) {
      skip_segment(segment);
      continue;
    }
    try {
      if (const RunRecord* from = resumed_in(segment); from != nullptr && from->denoised) take_latents(*from);
      else denoise_segment(segment);
    } catch (...) {
      // Ranks that stopped at different blocks would gather different ones the next time.
      if (pass_.layout.weight_shards > 1) pass_.experts.release_kept();
      throw;
    }
    // Waits for all ranks: those of this process share the weights until the last one releases them.
    memory_.gather();
    Tensor kept;
    TensorView latents = latents_;
    if (run_.plan_.references > 0) {
      kept = without_references(latents, run_.plan_.references);
      latents = kept;
    }
    for (int64_t v = 0; v < run_.plan_.videos; ++v)
      results[static_cast<size_t>(v)].latents = copy_of(latents.slice(0, v, v + 1));
    if (pass_.stop == Stop::kAfterDenoise && last) {
      if (pass_.trace != nullptr) comm::gather_trace(world_, *pass_.trace);  // else with what is decoded
      break;
    }
    decode_segment(segment, latents);
    // Ranks that decode nothing have ended; waiting for all would be waiting for as long as decoding takes.
    if (pass_.layout.vae_ranks == world_.size() || !last) memory_.gather();
  }
  finish(pass_.outputs.back(), timing_);
  add_wholes(timing_);
  for (size_t v = 0; v < results.size(); ++v) {
    results[v].seed = pass_.seeds[v];
    results[v].denoise_seconds = timing_.seconds(phases::kDenoise);
  }
  report(results.front());
  return results;
}

void Run::RunningPass::encode_prompts() {
  KnownPrompts* const known = pass_.prompts;
  const std::string texts = prompts_of(run_.videos_, run_.plan_);
  embeddings_ = encode_prompts_over_ranks(stage_, world_, known != nullptr ? known->find(texts) : nullptr);
  for (int64_t v = 0; v < run_.plan_.videos; ++v) add_prompts(dump(v), *embeddings_, v, run_.plan_.videos);
  if (known != nullptr) known->keep(texts, embeddings_);
}

// What a denoiser tells between its steps: what is dumped, noted and shown of them. What it is given must outlive it.
Denoiser::Hooks Run::RunningPass::step_hooks(int64_t segment, const Denoiser& denoiser, Preview& preview) {
  const bool first = world_.rank() == 0;
  const std::string prefix = prefix_of(segment);
  const int64_t before = segment * pass_.plan.steps();
  Denoiser::Hooks hooks;
  hooks.cancelled = callbacks_.cancelled;
  if (first) hooks.layer = callbacks_.layer;
  hooks.step = [=, this, &denoiser, &preview](const Denoiser::StepDone& done) {
    for (int64_t v = 0; v < run_.plan_.videos; ++v) {
      dump(v).add(fmt::format("{}velocity.{}", prefix, done.step), done.velocity.slice(0, v, v + 1));
      dump(v).add(fmt::format("{}latents.{}", prefix, done.step), done.latents.slice(0, v, v + 1));
    }
    ++steps_made_;
    if (callbacks_.latents) {
      if (first) callbacks_.latents(before + done.step, done.timestep, done.latents);
      world_.broadcast(0, done.latents.raw(), done.latents.bytes(), "latents of a callback");
    }
    if (journal() != nullptr) {
      const trace::Timing::Scope scope(timing_, phases::kJournal);
      RunRecord record = record_of(segment);
      record.denoise = denoiser.state();
      journal()->record(std::move(record));
    }
    // Behind the record: when a step is told, the one before it is on the disk.
    if (first && callbacks_.step) callbacks_.step(before + done.step + 1, run_.plan_.total_steps(), done.seconds);
    preview.after(done, before);
  };
  return hooks;
}

// From noise to latents.
void Run::RunningPass::denoise_segment(int64_t segment) {
  const bool first = world_.rank() == 0, animates = run_.model_.kind.animation.taken;
  draw_noise(segment);
  for (int64_t v = 0; v < run_.plan_.videos; ++v) dump(v).add(prefix_of(segment) + "latents.init", latents_of(v));
  const RunRecord* from = resumed_in(segment);
  if (from != nullptr && from->tail) tail_ = copy_of(from->tail);
  const trace::Lane lane{pass_.trace, world_.world_rank(world_.rank()), trace::kComputeLane};
  std::optional<trace::Span> phase;  // the one before ends where the next begins
  if (embeddings_ == nullptr) {
    memory_.begin(planner::kTextEncoder);
    phase.emplace(lane, "phase: text encoder");
    encode_prompts();
  }
  if (has_conditions(stage_, run_.inputs_)) memory_.begin(planner::kConditions);
  phase.emplace(lane, "phase: conditions");
  const Conditions conditions =
      animates
          ? encode_segment(stage_, run_.inputs_, world_, run_.open_.vae_encoder, dumps(), segment, tail_, character_)
          : encode_conditions(stage_, run_.inputs_, world_, run_.open_.vae_encoder, dumps());
  memory_.begin(planner::kTransformer);
  phase.emplace(lane, "phase: load and prepare");
  Stream stream(stage_.threads_of_each(world_.ranks_in_this_process()),
                {pass_.trace, world_.rank(), trace::kComputeLane});
  ExpertWeights weights({.model = run_.model_,
                         .experts = pass_.experts,
                         .dtype = pass_.plan.dtype,
                         .threads = comm::process_threads(run_.options_.threads),
                         .every_rank_loads = world_.ranks_in_this_process() < world_.size(),
                         .weight_cache = run_.options_.weight_cache,
                         .weight_memory = weight_memory_bytes(question_.options),
                         .layout = pass_.layout,
                         .callbacks = callbacks_},
                        world_);
  MemoryQuestion balanced = question_;
  balanced.layout.context.shard_weights = shard_weights_;
  const bool balances = run_.options_.strategy.shard_weights.automatic && balanced.layout.of_sequence().ranks() > 1;
  const bool follows_plan = pass_.planned != nullptr && !run_.options_.comm_timeout && !run_.keeps_timeout_;
  const Denoiser::Setup setup{.model = run_.model_,
                              .plan = pass_.plan,
                              .layout = balanced.layout,
                              .strategy = pass_.strategy,
                              .prompts = *embeddings_,
                              .conditions = conditions,
                              .mask_padding_tokens = run_.options_.mask_padding_tokens,
                              .weights = weights,
                              .contexts = pass_.contexts,
                              .check_finite = run_.options_.check_finite,
                              .step_timeout = follows_plan ? pass_.planned->step_timeout : std::nullopt,
                              .balances_shards = balances,
                              .pricing = balances && first ? shard_pricing(balanced) : std::nullopt,
                              .observer = segment == 0 ? pass_.observer : Observer()};
  Denoiser denoiser(setup, world_, stream, timing_);
  const int64_t made = from != nullptr ? from->steps_done() : 0;  // by another process
  if (made > 0) std::memcpy(latents_.view().raw(), from->latents.view().raw(), latents_.view().bytes());
  denoiser.load_first_expert(made, callbacks_.cancelled);
  if (pass_.admitted != nullptr && weights.have_been_read()) run_.open_.note_loaded(*pass_.admitted);
  Preview preview(stage_, conditions, world_, run_.open_.vae_decoder);
  if (first && callbacks_.step && (segment == 0 || made > 0))
    callbacks_.step(segment * pass_.plan.steps() + made, run_.plan_.total_steps(), 0);
  phase.emplace(lane, "phase: denoise");
  denoiser.run(latents_, step_hooks(segment, denoiser, preview), made > 0 ? &from->denoise : nullptr);
  phase.reset();
  attention::add(denoiser.attention_counters(), attention_);
  attention::add(attention::sum_over_ranks(world_, denoiser.attention_counters()), attention_of_all_);
  shard_weights_ = denoiser.shard_weights();
  if (const std::optional<StepCacheReport> report = denoiser.step_cache_report()) add(*report, step_cache_);
  const bool last = segment + 1 == run_.plan_.segments.count;
  weights_ = last ? nullptr : denoiser.weights();
}

std::string Run::RunningPass::prefix_of(int64_t segment) const {
  return run_.model_.kind.animation.taken ? fmt::format("segment.{}.", segment) : "";
}

void Run::RunningPass::draw_noise(int64_t segment) {
  for (int64_t v = 0; v < run_.plan_.videos; ++v)
    fill_noise(run_.videos_[static_cast<size_t>(v)], noise_[static_cast<size_t>(v)], segment, latents_of(v));
}

// The final latents of a segment that another process has denoised.
void Run::RunningPass::take_latents(const RunRecord& from) {
  draw_noise(from.segment);
  if (from.tail) tail_ = copy_of(from.tail);
  std::memcpy(latents_.view().raw(), from.latents.view().raw(), latents_.view().bytes());
}

// From latents to frames of the output, and to those that the next segment begins with.
void Run::RunningPass::decode_segment(int64_t segment, const TensorView& latents) {
  const Segments& segments = run_.plan_.segments;
  const bool last = segment + 1 == segments.count;
  const Shape frame{run_.options_.height, run_.options_.width, 3};
  const bool first = world_.rank() == 0;
  const RunRecord* from = resumed_in(segment);
  const bool goes_on = from != nullptr && from->decode;
  // Its first frames may be decoded already.
  if (!last) {
    tail_ =
        goes_on && from->tail
            ? copy_of(from->tail)
            : Tensor::uninitialized(DType::kF32, {run_.plan_.videos * segments.shared, frame[0], frame[1], frame[2]});
  }
  memory_.begin(planner::kVae);
  NoFrames nobody;
  std::vector<FrameOutput> to;
  for (int64_t v = 0; v < run_.plan_.videos; ++v) {
    Output& output = pass_.outputs[static_cast<size_t>(v)];
    DecodedPart part = part_of(segment);
    FrameSink* sink = output.sink.get();
    if (first && sink == nullptr) sink = &nobody;
    reserve_frames(output);
    if (first && !last) part.tail = tail_.view().slice(0, v * segments.shared, (v + 1) * segments.shared);
    const bool decodes = !goes_on || v >= from->decode->video;
    if (run_.model_.kind.animation.taken && first && decodes) {
      part.decoded = output.dump.reserve(fmt::format("segment.{}.decoded", segment), DType::kF32,
                                         {1, 3, segments.frames, frame[0], frame[1]});
    }
    std::function<void()> ends;
    if (last) ends = [&] { finish(output, timing_); };
    to.push_back({sink, output.floats, output.bytes, part, std::move(ends)});
  }
  const auto record = [&] {
    RunRecord denoised = record_of(segment);
    denoised.denoised = true;
    return denoised;
  };
  std::optional<JournaledDecode> journaled;
  if (pass_.journal != nullptr && !pass_.journal->folder.empty())
    journaled = {pass_.journal->folder, journal(), segment, goes_on ? &*from->decode : nullptr, record};
  if (journal() != nullptr && !goes_on) journal()->record(record());
  world_.set_step("the decoding of frames");
  decode_frames(stage_, world_, run_.open_.vae_decoder, latents, to, journaled ? &*journaled : nullptr);
  if (last) return;
  world_.broadcast(0, tail_.view().raw(), tail_.view().bytes(), "frames that segments share");
  if (journal() == nullptr) return;
  RunRecord next;
  next.segment = segment + 1;
  next.tail = copy_of(tail_);
  next.step_cache = step_cache_;
  journal()->record(std::move(next));
}

// One that another process has made: its frames are in the journal.
void Run::RunningPass::skip_segment(int64_t segment) {
  draw_noise(segment);  // the next one's is drawn behind it
  std::vector<FrameOutput> to;
  for (Output& output : pass_.outputs) {
    if (output.sink != nullptr) reserve_frames(output);
    to.push_back({output.sink.get(), output.floats, output.bytes, part_of(segment)});
  }
  replay_frames(stage_, world_, journal(), to);
}

// Where a segment's frames are in the output.
DecodedPart Run::RunningPass::part_of(int64_t segment) const {
  const Segments& segments = run_.plan_.segments;
  DecodedPart part;
  part.left_out = segment > 0 ? segments.shared : 0;
  part.first = segments.begin(segment) + part.left_out;
  part.frames = std::min(segments.frames - part.left_out, run_.options_.num_frames - part.first);
  part.last = segment + 1 == segments.count;
  return part;
}

void Run::RunningPass::reserve_frames(Output& output) const {
  if (output.bytes || !output.dump.on()) return;
  const Shape clip{run_.options_.num_frames, run_.options_.height, run_.options_.width, 3};
  output.floats = output.dump.reserve("frames", DType::kF32, clip);
  output.bytes = output.dump.reserve("frames_u8", DType::kU8, clip);
}

std::optional<ShardPricing> Run::RunningPass::shard_pricing(const MemoryQuestion& question) const {
  if (pass_.planned == nullptr || pass_.planned->hardware == nullptr) return std::nullopt;
  ShardPricing pricing{work_of(question), pass_.planned->hardware, {}};
  pricing.configuration.layout = question.layout;
  pricing.configuration.softmax = pass_.planned->softmax;
  if (!pass_.available) return pricing;
  pricing.fits = [question = question, available = *pass_.available](const std::vector<int>& weights) mutable {
    question.layout.context.shard_weights = weights;
    return peak_memory(question) <= available;
  };
  return pricing;
}

// What is said of the whole run, which is in its first video.
void Run::RunningPass::report(Video& result) {
  result.bytes_sent = attention::traffic(attention_of_all_).bytes_sent;
  result.step_cache = step_cache_;
  const double key_rounding = attention_of_all_.key_rounding, value_rounding = attention_of_all_.value_rounding;
  if (key_rounding > 0 || value_rounding > 0) result.kv_rounding = {key_rounding, value_rounding};
  if (world_.rank() != 0) return;
  const std::string rounding =
      kv_rounding_text(result, pass_.strategy.kv_exchange) + int8_heads_text(attention_of_all_);
  result.memory = memory_.finish();
  result.layout = parallel::text(pass_.layout, pass_.strategy.softmax.value_or(parallel::Softmax::kOnline));
  for (const trace::Timing::Phase& phase : timing_.phases()) result.phases.push_back({phase.path, phase.seconds});
  result.timing = fmt::format("Timing of attention={}, {}\n", run_.options_.strategy.attention, result.layout) +
                  timing_.to_string() + memory_.text() + rounding;
  compare_with_plan(result);
  result.summary = short_summary(timing_, steps_made_, result) + rounding;
  if (!shard_weights_.empty()) {
    result.summary += fmt::format("Shard weights {}\n", fmt::join(shard_weights_, ","));
  } else if (run_.options_.strategy.shard_weights.automatic && pass_.layout.of_sequence().ranks() > 1) {
    result.summary += "Shard weights even\n";
  }
}

void Run::RunningPass::compare_with_plan(Video& result) const {
  // What is left of a run that resumes was not planned.
  if (pass_.planned == nullptr || !pass_.planned->priced() || pass_.resumed() != nullptr) return;
  const Frames frames = pass_.stop == Stop::kAfterOutput ? Frames::kDecoded : Frames::kNone;
  const int64_t steps = priced_steps(run_.plan_);
  planner::RunPrediction predicted = pass_.planned->predicted;
  predicted.denoise = static_cast<double>(steps) * predicted.step.seconds;  // without cache_compare's
  result.predicted = predicted_parts(predicted, measured_run(timing_, attention_, steps, run_.weights_, frames));
  result.timing += predicted_text(result.predicted, steps);
  // A cache that decides by data is priced as if it reused nothing: then it is faster, not the machine.
  const bool saved = steps == run_.plan_.total_steps() && result.step_cache && result.step_cache->reused > 0;
  if (!pass_.planned->first_use || saved || !far_faster(result.predicted)) return;
  machine::doubt_machine();
  result.timing += "  Far faster than predicted: this machine is measured again at the next use\n";
}

// When the output has every frame: the files get their names. A dump that cannot be written costs no video.
void Run::finish(Output& output, trace::Timing& timing) {
  if (output.sink == nullptr) return;
  const trace::Timing::Scope whole(timing, phases::kDecode), part(timing, phases::kDecodeFormatting);
  const auto dump = [&](void (Dump::*step)()) {
    try {
      if (!output.lost_dump) (output.dump.*step)();
    } catch (const Error&) {
      output.lost_dump = std::current_exception();
    }
  };
  dump(&Dump::prepare);
  output.sink->finish();
  dump(&Dump::commit);
}

}  // namespace zoetrope::pipeline
