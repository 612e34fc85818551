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

void Run::compare_with_plan(const trace::Timing& timing, const attention::Counters& attention, const Pass& pass,
                            Video& result) const {
  // What is left of a run that resumes was not planned.
  if (pass.planned == nullptr || !pass.planned->priced() || pass.resumed() != nullptr) return;
  const Frames frames = pass.stop == Stop::kAfterOutput ? Frames::kDecoded : Frames::kNone;
  const int64_t steps = priced_steps(plan_);
  planner::RunPrediction predicted = pass.planned->predicted;
  predicted.denoise = static_cast<double>(steps) * predicted.step.seconds;  // without cache_compare's
  result.predicted = predicted_parts(predicted, measured_run(timing, attention, steps, weights_, frames));
  result.timing += predicted_text(result.predicted, steps);
  // A cache that decides by data is priced as if it reused nothing: then it is faster, not the machine.
  const bool saved = steps == plan_.total_steps() && result.step_cache && result.step_cache->reused > 0;
  if (!pass.planned->first_use || saved || !far_faster(result.predicted)) return;
  machine::doubt_machine();
  result.timing += "  Far faster than predicted: this machine is measured again at the next use\n";
}

// What the stages of a pass share.
struct Run::PassState {
  PassState(const Run& run, comm::Communicator& communicator, const Pass& of, const Callbacks& to)
      : world(communicator),
        pass(of),
        callbacks(to),
        stage{run.options_, run.model_, run.plan_, of.layout, to, timing, of.trace},
        question(run.memory_question(of)),
        memory(communicator, memory_plan(question)),
        latents(DType::kF32,
                {run.plan_.videos, run.plan_.channels, run.plan_.latent[0], run.plan_.latent[1], run.plan_.latent[2]}) {
    for (const int64_t seed : of.seeds) noise.emplace_back(static_cast<uint64_t>(seed));
  }
  // Where a run resumes; null in one that begins, and for the segments behind that place.
  const RunRecord* from(int64_t segment) const {
    const RunRecord* resumed = pass.resumed();
    return resumed != nullptr && resumed->segment == segment ? resumed : nullptr;
  }
  Journal* journal() const { return pass.journal != nullptr ? pass.journal->journal.get() : nullptr; }  // rank 0's
  RunRecord record(int64_t segment) const {
    RunRecord record;
    record.segment = segment;
    record.latents = copy_of(latents);
    if (tail) record.tail = copy_of(tail);
    record.step_cache = step_cache;
    return record;
  }
  Dump& dump(int64_t video) const { return pass.outputs[static_cast<size_t>(video)].dump; }
  Dumps dumps() const {
    std::vector<Dump*> all;
    for (Output& output : pass.outputs) all.push_back(&output.dump);
    return Dumps(std::move(all));
  }
  TensorView latents_of(int64_t video) const { return latents.view().slice(0, video, video + 1); }

  comm::Communicator& world;
  const Pass& pass;
  const Callbacks& callbacks;
  trace::Timing timing;
  const Stage stage;
  const MemoryQuestion question;  // of this pass
  MemoryReport memory;
  std::deque<sampling::TorchGenerator> noise;  // of each video
  std::shared_ptr<const PromptEmbeddings> embeddings;
  Tensor latents;  // [videos, C, T, h, w], of a segment
  // Animate
  Character character;
  Tensor tail;  // [videos·V, H, W, 3] F32: what the next segment begins with, of one video after another
  // Of the transformer: as long as somebody holds them, the next segment does not read them again.
  std::shared_ptr<const void> weights;

  std::vector<int> shard_weights = pass.layout.of_sequence().shard_weights;  // of the last step
  int64_t steps_made = 0;                                                    // by this process
  attention::Counters attention, attention_of_all;                           // of this rank, of all ranks
  std::optional<StepCacheReport> step_cache;
};

void Run::encode_prompts(PassState& s) const {
  KnownPrompts* const known = s.pass.prompts;
  const std::string texts = prompts_of(videos_, plan_);
  s.embeddings = encode_prompts_over_ranks(s.stage, s.world, known != nullptr ? known->find(texts) : nullptr);
  for (int64_t v = 0; v < plan_.videos; ++v) add_prompts(s.dump(v), *s.embeddings, v, plan_.videos);
  if (known != nullptr) known->keep(texts, s.embeddings);
}

// What a denoiser tells between its steps: what is dumped, noted and shown of them. What it is given must outlive it.
Denoiser::Hooks Run::step_hooks(PassState& s, int64_t segment, const Denoiser& denoiser, Preview& preview) const {
  const bool first = s.world.rank() == 0;
  const std::string prefix = prefix_of(segment);
  const int64_t before = segment * s.pass.plan.steps();
  Denoiser::Hooks hooks;
  hooks.cancelled = s.callbacks.cancelled;
  if (first) hooks.layer = s.callbacks.layer;
  hooks.step = [=, this, &s, &denoiser, &preview](const Denoiser::StepDone& done) {
    for (int64_t v = 0; v < plan_.videos; ++v) {
      s.dump(v).add(fmt::format("{}velocity.{}", prefix, done.step), done.velocity.slice(0, v, v + 1));
      s.dump(v).add(fmt::format("{}latents.{}", prefix, done.step), done.latents.slice(0, v, v + 1));
    }
    ++s.steps_made;
    if (s.callbacks.latents) {
      if (first) s.callbacks.latents(before + done.step, done.timestep, done.latents);
      s.world.broadcast(0, done.latents.raw(), done.latents.bytes(), "latents of a callback");
    }
    if (s.journal() != nullptr) {
      const trace::Timing::Scope scope(s.timing, phases::kJournal);
      RunRecord record = s.record(segment);
      record.denoise = denoiser.state();
      s.journal()->record(std::move(record));
    }
    // Behind the record: when a step is told, the one before it is on the disk.
    if (first && s.callbacks.step) s.callbacks.step(before + done.step + 1, plan_.total_steps(), done.seconds);
    preview.after(done, before);
  };
  return hooks;
}

// From noise to latents.
void Run::denoise_segment(PassState& s, int64_t segment) {
  const Pass& pass = s.pass;
  const bool first = s.world.rank() == 0, animates = model_.kind.animation.taken;
  draw_noise(s, segment);
  for (int64_t v = 0; v < plan_.videos; ++v) s.dump(v).add(prefix_of(segment) + "latents.init", s.latents_of(v));
  const RunRecord* from = s.from(segment);
  if (from != nullptr && from->tail) s.tail = copy_of(from->tail);
  const trace::Lane lane{pass.trace, s.world.world_rank(s.world.rank()), trace::kComputeLane};
  std::optional<trace::Span> phase;  // the one before ends where the next begins
  if (s.embeddings == nullptr) {
    s.memory.begin(planner::kTextEncoder);
    phase.emplace(lane, "phase: text encoder");
    encode_prompts(s);
  }
  if (has_conditions(s.stage, inputs_)) s.memory.begin(planner::kConditions);
  phase.emplace(lane, "phase: conditions");
  const Conditions conditions =
      animates ? encode_segment(s.stage, inputs_, s.world, open_.vae_encoder, s.dumps(), segment, s.tail, s.character)
               : encode_conditions(s.stage, inputs_, s.world, open_.vae_encoder, s.dumps());
  s.memory.begin(planner::kTransformer);
  phase.emplace(lane, "phase: load and prepare");
  Stream stream(s.stage.threads_of_each(s.world.ranks_in_this_process()),
                {pass.trace, s.world.rank(), trace::kComputeLane});
  ExpertWeights weights({.model = model_,
                         .experts = pass.experts,
                         .dtype = pass.plan.dtype,
                         .threads = comm::process_threads(options_.threads),
                         .every_rank_loads = s.world.ranks_in_this_process() < s.world.size(),
                         .weight_cache = options_.weight_cache,
                         .weight_memory = weight_memory_bytes(s.question.options),
                         .layout = pass.layout,
                         .callbacks = s.callbacks},
                        s.world);
  MemoryQuestion balanced = s.question;
  balanced.layout.context.shard_weights = s.shard_weights;
  const bool balances = options_.strategy.shard_weights.automatic && balanced.layout.of_sequence().ranks() > 1;
  const bool follows_plan = pass.planned != nullptr && !options_.comm_timeout && !keeps_timeout_;
  const Denoiser::Setup setup{.model = model_,
                              .plan = pass.plan,
                              .layout = balanced.layout,
                              .strategy = pass.strategy,
                              .prompts = *s.embeddings,
                              .conditions = conditions,
                              .mask_padding_tokens = options_.mask_padding_tokens,
                              .weights = weights,
                              .contexts = pass.contexts,
                              .check_finite = options_.check_finite,
                              .step_timeout = follows_plan ? pass.planned->step_timeout : std::nullopt,
                              .balances_shards = balances,
                              .pricing = balances && first ? shard_pricing(pass, balanced) : std::nullopt,
                              .observer = segment == 0 ? pass.observer : Observer()};
  Denoiser denoiser(setup, s.world, stream, s.timing);
  const int64_t made = from != nullptr ? from->steps_done() : 0;  // by another process
  if (made > 0) std::memcpy(s.latents.view().raw(), from->latents.view().raw(), s.latents.view().bytes());
  denoiser.load_first_expert(made, s.callbacks.cancelled);
  if (pass.admitted != nullptr && weights.have_been_read()) open_.note_loaded(*pass.admitted);
  Preview preview(s.stage, conditions, s.world, open_.vae_decoder);
  if (first && s.callbacks.step && (segment == 0 || made > 0))
    s.callbacks.step(segment * pass.plan.steps() + made, plan_.total_steps(), 0);
  phase.emplace(lane, "phase: denoise");
  denoiser.run(s.latents, step_hooks(s, segment, denoiser, preview), made > 0 ? &from->denoise : nullptr);
  phase.reset();
  attention::add(denoiser.attention_counters(), s.attention);
  attention::add(attention::sum_over_ranks(s.world, denoiser.attention_counters()), s.attention_of_all);
  s.shard_weights = denoiser.shard_weights();
  if (const std::optional<StepCacheReport> report = denoiser.step_cache_report()) add(*report, s.step_cache);
  const bool last = segment + 1 == plan_.segments.count;
  s.weights = last ? nullptr : denoiser.weights();
}

std::string Run::prefix_of(int64_t segment) const {
  return model_.kind.animation.taken ? fmt::format("segment.{}.", segment) : "";
}

bool Run::uses_seed(const GenerateOptions& video) const {
  if (video.latents.empty()) return true;
  const auto file = io::TensorFile::open(video.latents);
  for (int64_t segment = 1; segment < plan_.segments.count; ++segment)
    if (!file->contains(noise_name(segment))) return true;
  return false;
}

void Run::draw_noise(PassState& s, int64_t segment) const {
  for (int64_t v = 0; v < plan_.videos; ++v)
    fill_noise(videos_[static_cast<size_t>(v)], s.noise[static_cast<size_t>(v)], segment, s.latents_of(v));
}

// The final latents of a segment that another process has denoised.
void Run::take_latents(PassState& s, const RunRecord& from) {
  draw_noise(s, from.segment);
  if (from.tail) s.tail = copy_of(from.tail);
  std::memcpy(s.latents.view().raw(), from.latents.view().raw(), s.latents.view().bytes());
}

// From latents to frames of the output, and to those that the next segment begins with.
void Run::decode_segment(PassState& s, int64_t segment, const TensorView& latents) {
  const Segments& segments = plan_.segments;
  const bool last = segment + 1 == segments.count;
  const Shape frame{options_.height, options_.width, 3};
  const bool first = s.world.rank() == 0;
  const RunRecord* from = s.from(segment);
  const bool goes_on = from != nullptr && from->decode;
  // Its first frames may be decoded already.
  if (!last) {
    s.tail = goes_on && from->tail
                 ? copy_of(from->tail)
                 : Tensor::uninitialized(DType::kF32, {plan_.videos * segments.shared, frame[0], frame[1], frame[2]});
  }
  s.memory.begin(planner::kVae);
  NoFrames nobody;
  std::vector<FrameOutput> to;
  for (int64_t v = 0; v < plan_.videos; ++v) {
    Output& output = s.pass.outputs[static_cast<size_t>(v)];
    DecodedPart part = part_of(segment);
    FrameSink* sink = output.sink.get();
    if (first && sink == nullptr) sink = &nobody;
    reserve_frames(output);
    if (first && !last) part.tail = s.tail.view().slice(0, v * segments.shared, (v + 1) * segments.shared);
    const bool decodes = !goes_on || v >= from->decode->video;
    if (model_.kind.animation.taken && first && decodes) {
      part.decoded = output.dump.reserve(fmt::format("segment.{}.decoded", segment), DType::kF32,
                                         {1, 3, segments.frames, frame[0], frame[1]});
    }
    std::function<void()> ends;
    if (last) ends = [&] { finish(output, s.timing); };
    to.push_back({sink, output.floats, output.bytes, part, std::move(ends)});
  }
  const auto record = [&] {
    RunRecord denoised = s.record(segment);
    denoised.denoised = true;
    return denoised;
  };
  std::optional<JournaledDecode> journaled;
  if (s.pass.journal != nullptr && !s.pass.journal->folder.empty())
    journaled = {s.pass.journal->folder, s.journal(), segment, goes_on ? &*from->decode : nullptr, record};
  if (s.journal() != nullptr && !goes_on) s.journal()->record(record());
  s.world.set_step("the decoding of frames");
  decode_frames(s.stage, s.world, open_.vae_decoder, latents, to, journaled ? &*journaled : nullptr);
  if (last) return;
  s.world.broadcast(0, s.tail.view().raw(), s.tail.view().bytes(), "frames that segments share");
  if (s.journal() == nullptr) return;
  RunRecord next;
  next.segment = segment + 1;
  next.tail = copy_of(s.tail);
  next.step_cache = s.step_cache;
  s.journal()->record(std::move(next));
}

// One that another process has made: its frames are in the journal.
void Run::skip_segment(PassState& s, int64_t segment) {
  draw_noise(s, segment);  // the next one's is drawn behind it
  std::vector<FrameOutput> to;
  for (Output& output : s.pass.outputs) {
    if (output.sink != nullptr) reserve_frames(output);
    to.push_back({output.sink.get(), output.floats, output.bytes, part_of(segment)});
  }
  replay_frames(s.stage, s.world, s.journal(), to);
}

// Where a segment's frames are in the output.
DecodedPart Run::part_of(int64_t segment) const {
  const Segments& segments = plan_.segments;
  DecodedPart part;
  part.left_out = segment > 0 ? segments.shared : 0;
  part.first = segments.begin(segment) + part.left_out;
  part.frames = std::min(segments.frames - part.left_out, options_.num_frames - part.first);
  part.last = segment + 1 == segments.count;
  return part;
}

void Run::reserve_frames(Output& output) const {
  if (output.bytes || !output.dump.on()) return;
  const Shape clip{options_.num_frames, options_.height, options_.width, 3};
  output.floats = output.dump.reserve("frames", DType::kF32, clip);
  output.bytes = output.dump.reserve("frames_u8", DType::kU8, clip);
}

std::vector<Video> Run::run_once(comm::Communicator& world, const Pass& pass, const Callbacks& callbacks) {
  PassState s(*this, world, pass, callbacks);
  if (pass.resumed() != nullptr) s.step_cache = pass.resumed()->step_cache;
  trace::Timing& timing = s.timing;
  for (const char* phase : {phases::kLoad, phases::kPrepare, phases::kInference, phases::kConditioning})
    timing.declare(phase);
  std::vector<Video> results(videos_.size());
  for (int64_t segment = 0; segment < plan_.segments.count; ++segment) {
    const bool last = segment + 1 == plan_.segments.count;
    if (pass.resumed() != nullptr && segment < pass.resumed()->segment) {
      skip_segment(s, segment);
      continue;
    }
    try {
      if (const RunRecord* from = s.from(segment); from != nullptr && from->denoised) take_latents(s, *from);
      else denoise_segment(s, segment);
    } catch (...) {
      // Ranks that stopped at different blocks would gather different ones the next time.
      if (pass.layout.weight_shards > 1) pass.experts.release_kept();
      throw;
    }
    // Waits for all ranks: those of this process share the weights until the last one releases them.
    s.memory.gather();
    Tensor kept;
    TensorView latents = s.latents;
    if (plan_.references > 0) {
      kept = without_references(latents, plan_.references);
      latents = kept;
    }
    for (int64_t v = 0; v < plan_.videos; ++v)
      results[static_cast<size_t>(v)].latents = copy_of(latents.slice(0, v, v + 1));
    if (pass.stop == Stop::kAfterDenoise && last) {
      if (pass.trace != nullptr) comm::gather_trace(world, *pass.trace);  // else with what is decoded
      break;
    }
    decode_segment(s, segment, latents);
    // Ranks that decode nothing have ended; waiting for all would be waiting for as long as decoding takes.
    if (pass.layout.vae_ranks == world.size() || !last) s.memory.gather();
  }
  finish(pass.outputs.back(), timing);
  add_wholes(timing);
  for (size_t v = 0; v < results.size(); ++v) {
    results[v].seed = pass.seeds[v];
    results[v].denoise_seconds = timing.seconds(phases::kDenoise);
  }
  Video& result = results.front();  // has what is said of the whole run
  result.bytes_sent = attention::traffic(s.attention_of_all).bytes_sent;
  result.step_cache = s.step_cache;
  const double key_rounding = s.attention_of_all.key_rounding, value_rounding = s.attention_of_all.value_rounding;
  if (key_rounding > 0 || value_rounding > 0) result.kv_rounding = {key_rounding, value_rounding};
  if (world.rank() == 0) {
    const std::string rounding =
        kv_rounding_text(result, pass.strategy.kv_exchange) + int8_heads_text(s.attention_of_all);
    result.memory = s.memory.finish();
    result.layout = parallel::text(pass.layout, pass.strategy.softmax.value_or(parallel::Softmax::kOnline));
    for (const trace::Timing::Phase& phase : timing.phases()) result.phases.push_back({phase.path, phase.seconds});
    result.timing = fmt::format("Timing of attention={}, {}\n", options_.strategy.attention, result.layout) +
                    timing.to_string() + s.memory.text() + rounding;
    compare_with_plan(timing, s.attention, pass, result);
    result.summary = short_summary(timing, s.steps_made, result) + rounding;
    if (!s.shard_weights.empty()) {
      result.summary += fmt::format("Shard weights {}\n", fmt::join(s.shard_weights, ","));
    } else if (options_.strategy.shard_weights.automatic && pass.layout.of_sequence().ranks() > 1) {
      result.summary += "Shard weights even\n";
    }
  }
  return results;
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
