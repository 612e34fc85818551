#include "pipeline/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <ranges>
#include <utility>
#include <variant>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/words.h"
#include "comm/launcher.h"
#include "io/weights/checksum.h"
#include "kernels/cpu_features.h"
#include "pipeline/checks/forward_checks.h"
#include "pipeline/model_files/int8_budget.h"
#include "pipeline/planning/admission.h"
#include "pipeline/planning/memory_here.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/hosts.h"
#include "pipeline/run.h"

namespace zoetrope::pipeline {
namespace {

constexpr double kSecondsOfMinute = 60;
constexpr double kShareOfTime = 0.5;  // for the ranks and one rank; as much again for float64

std::string size_text(const GenerateOptions& options) {
  return fmt::format("{}x{}, {}, {}", options.width, options.height, counted(options.num_frames, "frame"),
                     counted(options.num_inference_steps, "step"));
}

// One clip that ends with its latents.
GenerateOptions checked_options(GenerateOptions options) {
  const std::pair<const char*, bool> others[] = {{"journal", !options.journal.empty() && options.journal != "auto"},
                                                 {"resume", !options.resume.empty()},
                                                 {"prompts", !options.prompts.empty()},
                                                 {"num_videos", options.num_videos > 1},
                                                 {"batch_size", options.batch_size > 1},
                                                 {"dump", !options.dump.empty()},
                                                 {"trace", !options.trace.empty()},
                                                 {"cache_compare", options.cache_compare}};
  for (const auto& [key, given] : others)
    if (given) fail("verify: checks the latents of one clip and writes no file of it; leave out {}", key);
  options.output.clear();
  options.grid.clear();
  options.journal.clear();
  options.preview.reset();
  options.compare_one_rank = true;
  return options;
}

GenerateOptions on_one_rank(GenerateOptions options) {
  const GenerateOptions defaults;
  options.strategy = attention::on_one_rank(options.strategy);
  options.context_parallelism = defaults.context_parallelism;
  options.data_parallelism = defaults.data_parallelism;
  options.fsdp_parallelism = defaults.fsdp_parallelism;
  options.tensor_parallelism = defaults.tensor_parallelism;
  options.vae_parallel = defaults.vae_parallel;
  options.ranks.reset();
  return options;
}

// The next smaller size, where there is one: fewer steps, then frames, then pixels, then as few steps as show what one
// leaves to the next.
// `switches`: within its steps it changes experts or reuses, which it then still has to do.
bool shrink(GenerateOptions& options, bool switches) {
  const int64_t few = switches ? 8 : 4, fewest = switches ? 4 : 2;
  constexpr int64_t kFrames = 5, kSide = 64, kCell = 16;
  const bool has_levels = !options.sigmas.empty() || !options.timesteps.empty();
  const bool has_size = !options.latents.empty() || options.max_area.has_value();
  if (!has_levels && options.num_inference_steps > few) {
    options.num_inference_steps = std::max(few, options.num_inference_steps / 2);
    return true;
  }
  if (!has_size && options.pose_video.empty() && options.num_frames > kFrames) {
    options.num_frames = std::max(kFrames, options.num_frames / 8 * 4 + 1);
    return true;
  }
  if (!has_size && options.width > kSide && options.height > kSide) {
    for (int64_t* side : {&options.width, &options.height}) *side = std::max(kSide, *side / 2 / kCell * kCell);
    return true;
  }
  if (has_levels || options.num_inference_steps <= fewest) return false;
  options.num_inference_steps = fewest;
  return true;
}

// The options at a size that fits into the time and the memory, by prediction; as they are where nothing is known.
GenerateOptions reduced(OpenModel& model, const GenerateOptions& options, const VerifySettings& settings, int ranks,
                        int processes_here) {
  const bool as_asked = settings.as_asked || settings.minutes == 0;
  const bool switches = model.folder.experts.size() > 1 || options.cache != sampling::StepCacheKind::kNone;
  GenerateOptions tried = options;
  for (;;) {
    const Run run(model, {tried});
    const Forecast forecast = run.forecast(ranks, processes_here);
    const std::optional<planner::Bytes> free = planner::tightest(limits_here(model.memory, processes_here));
    const double left = free ? free->gigabytes() - forecast.memory.gigabytes() : INFINITY;
    constexpr double kShareOfMemory = 0.5, kGigabyte = 1e9;
    const double needed = ForwardChecks::kept_bytes(model.folder, run.plan()) / kGigabyte / kShareOfMemory;
    if (as_asked && needed > left)
      fail(
          "verify: needs {:.3g} GB to keep the values of {}, and {:.3g} GB are left beside the run; take fewer steps, "
          "frames or pixels, or minutes= to have them chosen",
          needed, size_text(tried), std::max(0.0, left));
    if (as_asked) return tried;
    double seconds = 0;
    if (forecast.seconds)
      seconds = *forecast.seconds + Run(model, {on_one_rank(tried)}).forecast(1).seconds.value_or(0);
    const bool fits = seconds <= settings.minutes * kSecondsOfMinute * kShareOfTime && needed <= left;
    if (fits || !shrink(tried, switches)) return tried;
  }
}

// Throws Error unless both have the same tensors.
void require_same_tensors(const ModelFolder& model, const ModelFolder& reference, const std::string& folder) {
  bool same = model.experts.size() == reference.experts.size();
  for (size_t i = 0; same && i < model.experts.size(); ++i) {
    const auto own = model.experts[i].weights.source(1), other = reference.experts[i].weights.source(1);
    for (const std::string& name : own->names()) {
      const Shape shape = own->info(name).shape;
      if (!other->contains(name) || !(other->info(name).shape == shape))
        fail("reference={}: has no tensor '{}' of shape {}; name the files that the model was made from", folder, name,
             shape.to_string());
    }
  }
  if (!same)
    fail("reference={}: has {}, the model {}; name the files that the model was made from", folder,
         counted(std::ssize(reference.experts), "transformer"), counted(std::ssize(model.experts), "transformer"));
}

std::string weights_hash(const ModelFolder& model) {
  uint64_t hash = fnv1a64("");
  const auto add = [&](const io::TensorFile& file) {
    const uint64_t one = file.hash(io::TensorFile::Sample::kAll);
    hash = fnv1a64({reinterpret_cast<const char*>(&one), sizeof one}, hash);
  };
  for (const Expert& expert : model.experts) {
    if (const io::Checkpoint* files = expert.weights.checkpoint())  // else random: by the settings
      for (const auto& file : files->files()) add(*file);
    for (const lora::Lora& lora : expert.loras) add(*io::TensorFile::open(lora.file));
  }
  return fmt::format("{:016x}", hash);
}

LatentsMark mark_of(const TensorView& latents) {
  constexpr int64_t kSample = 256;
  const float* values = latents.data<float>();
  LatentsMark mark;
  mark.hash = io::checksum(latents.data<std::byte>(), latents.bytes());
  for (int64_t i = 0; i < latents.size(); ++i)
    mark.norm += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  mark.norm = std::sqrt(mark.norm);
  const int64_t count = std::min(kSample, latents.size());
  for (int64_t i = 0; i < count; ++i) mark.sample.push_back(values[i * latents.size() / count]);
  return mark;
}

std::string instruction_set() {
  const kernels::CpuFeatures& cpu = kernels::cpu_features();
  if (cpu.amx_bf16) return "AMX";
  if (cpu.avx512_bf16) return "AVX-512 BF16";
  if (cpu.avx512) return "AVX-512";
  return cpu.avx2 ? "AVX2" : "x86-64";
}

VerifiedValue verified(const ForwardChecks& checks, const CheckedValue& value) {
  return {value.tensor, checks.place_text(value), value.relative_l2, value.max_abs, value.bound, value.of_bound};
}

std::string sentence(const ForwardChecks& checks, const CheckedValue& value) {
  const std::string place = fmt::format("{}: {}", checks.place_text(value), value.tensor);
  if (!std::isfinite(value.max_abs)) return fmt::format("{} is missing or not finite", place);
  const char* from = value.against == Against::kOneRank      ? "one rank"
                     : value.against == Against::kOtherRanks ? "another rank, whose it should be"
                     : value.against == Against::kWeights    ? "the reference"
                                                             : "float64";
  std::string text = fmt::format("{} is {:.3g} from {} (relative L2", place, value.relative_l2, from);
  if (std::isfinite(value.of_bound)) text += fmt::format("; {:.3g} times its bound", value.of_bound);
  return text + ")";
}

VerifyReport report_of(const ForwardChecks& checks, const ModelFolder& model, const Run& run) {
  VerifyReport report;
  for (const CheckedValue& value : checks.worst()) {
    const bool exact = value.against == Against::kFloat64 || value.against == Against::kWeights;
    (exact ? report.float64 : report.one_rank).worst.push_back(verified(checks, value));
  }
  report.one_rank.values = checks.checked(Against::kOneRank) + checks.checked(Against::kOtherRanks);
  report.float64.values = checks.checked(Against::kFloat64);
  report.stages = checks.stages();
  report.stages_checked = checks.stages_checked();
  for (const ReusedStep& step : checks.reused()) report.reused[step.step + 1] = step.relative_l2;
  if (const auto* drift = std::get_if<sampling::DriftCacheSettings>(&run.plan().step_cache))
    report.reuse_threshold = drift->threshold;
  for (const Tensor& latents : checks.latents()) report.latents.push_back(mark_of(latents));
  report.outside = checks.outside();
  report.layers = static_cast<int>(model.experts.front().config.num_layers);
  const bool int8 = std::any_of(model.experts.begin(), model.experts.end(),
                                [](const Expert& expert) { return !expert.config.int8_blocks.empty(); });
  report.dtype = dtype_word(int8 ? DType::kI8 : run.plan().dtype);
  report.instruction_set = instruction_set();
  // int8 counts, though its products have the same bits everywhere: inputs that differ by bf16's 2^−9 round to other
  // steps where they cross one. With steps of √12·2^−7 that is an error of √(√12·2^−7·2^−9), or 2^−7: all of int8's
  // rounding.
  constexpr double kStagesOfLayer = 3;
  report.step_bound = checks.largest_bound() * std::sqrt(kStagesOfLayer * report.layers);
  if (const std::optional<CheckedValue>& first = checks.first_outside())
    report.first_outside = sentence(checks, *first);
  std::vector<std::string> unused;
  for (int expert = 0; expert < std::ssize(model.experts); ++expert)
    if (!checks.uses_expert(expert)) unused.emplace_back(expert_name(expert));
  if (run.plan().step_cache.index() != 0 && report.reused.empty()) unused.emplace_back("the step cache");
  report.unused = fmt::format("{}", fmt::join(unused, ", "));
  return report;
}

const VerifiedValue* worst_of(const VerifyReport::Check& check) {
  const auto worst = std::max_element(check.worst.begin(), check.worst.end(),
                                      [](const auto& a, const auto& b) { return a.of_bound < b.of_bound; });
  return worst == check.worst.end() ? nullptr : &*worst;
}

std::string check_text(const VerifyReport::Check& check) {
  const VerifiedValue* worst = worst_of(check);
  if (worst == nullptr) return "nothing was compared";
  if (worst->of_bound == 0) return "no difference";
  return fmt::format("largest error {:.2g} of its bound: {} in {}, relative L2 {:.2g}", worst->of_bound, worst->tensor,
                     worst->place, worst->relative_l2);
}

}  // namespace

std::string VerifyReport::text(bool whole) const {
  std::string text = fmt::format("Verified {} ({}): {}\n", counted(ranks, "rank"), layout, size);
  if (!reduced.empty()) text += fmt::format("  Asked for {}; minutes=0 verifies that\n", reduced);
  if (!unused.empty()) text += fmt::format("  Not used in these steps, so not verified: {}\n", unused);
  text += fmt::format("  Against one rank, {}: {}\n", counted(one_rank.values, "value"), check_text(one_rank));
  text += fmt::format("  Against float64{}, {} of {}, {}: {}\n", reference.empty() ? "" : " with " + reference,
                      stages_checked, counted(stages, "stage"),
                      rows == 0 ? "all tokens" : counted(rows, "token") + " of each", check_text(float64));
  if (!reused.empty()) {
    std::vector<std::string> steps;
    for (const auto& [step, distance] : reused) steps.push_back(fmt::format("{}: {:.2g}", step, distance));
    text += fmt::format("  Steps that reuse, with the distance of their velocity to that of a whole forward: {}\n",
                        fmt::join(steps, ", "));
    const double largest = std::ranges::max(reused | std::views::values);
    if (reuse_threshold && largest > *reuse_threshold)
      text +=
          fmt::format("  The largest of them, {:.2g}, is above cache_threshold={:.2g}, which the cache only predicts\n",
                      largest, *reuse_threshold);
  }
  if (!latents.empty()) text += fmt::format("  Latents {:016x}\n", latents.back().hash);
  if (!whole) return text;
  for (const auto& [name, check] : {std::pair("one rank", &one_rank), std::pair("float64", &float64)}) {
    text += fmt::format("  Worst of each tensor against {}:\n    {:<34} {:>11} {:>11} {:>11} {:>8}  place\n", name,
                        "tensor", "relative L2", "its bound", "maximum", "of bound");
    for (const VerifiedValue& value : check->worst)
      text += fmt::format("    {:<34} {:>11.3g} {:>11.3g} {:>11.3g} {:>8.2g}  {}\n", value.tensor, value.relative_l2,
                          value.bound, value.max_abs, value.of_bound, value.place);
  }
  return text;
}

struct Verification::State {
  State(OpenModel& opened, const GenerateOptions& options, const VerifySettings& asked, int of_ranks)
      : model(opened),
        settings(asked),
        reference(opened_reference(opened, options, asked)),
        ranks(of_ranks),
        run(opened, {checked_options(options)}),
        checks({opened.folder, run.plan(), options.vae_dtype, options.strategy.kv_exchange_dtype,
                options.strategy.attention_dtype, comm::process_threads(options.threads)},
               of_ranks) {
    run.use_checks(checks);
    if (settings.begins) settings.begins(run.identity({options.seed}), weights_hash(opened.folder));
  }
  static std::optional<ModelFolder> opened_reference(const OpenModel& model, GenerateOptions options,
                                                     const VerifySettings& settings) {
    if (settings.reference.empty()) return std::nullopt;
    options = with_choices(std::move(options), model.folder);
    options.model = settings.reference;
    options.transformer.clear();
    options.transformer_2.clear();
    options.weights = WeightSource::kCheckpoint;
    options.weights_seed.reset();
    ModelFolder reference = ModelFolder::open(options);
    require_same_tensors(model.folder, reference, settings.reference);
    return reference;
  }

  OpenModel& model;
  const VerifySettings settings;
  const std::optional<ModelFolder> reference;
  const int ranks;
  Run run;
  ForwardChecks checks;
  Video video;  // rank 0's
};

Verification::Verification(OpenModel& model, const GenerateOptions& options, const VerifySettings& settings, int ranks)
    : state_(std::make_unique<State>(model, options, settings, ranks)) {}
Verification::~Verification() = default;

void Verification::run(comm::Communicator& world, const Callbacks& callbacks) {
  std::vector<Video> videos = state_->run.run(world, {}, callbacks);
  if (world.rank() == 0) state_->video = std::move(videos.front());
}

void Verification::run_on_threads(const Callbacks& callbacks) {
  state_->video = std::move(state_->run.run_on_threads({}, callbacks).front());
}

VerifyReport Verification::report(const Callbacks& callbacks) {
  State& s = *state_;
  const double seconds = s.settings.minutes > 0 ? s.settings.minutes * kSecondsOfMinute * kShareOfTime : INFINITY;
  s.checks.check_in_float64(s.reference ? &*s.reference : nullptr, {s.settings.rows, seconds}, callbacks.layer,
                            callbacks.cancelled);
  VerifyReport report = report_of(s.checks, s.model.folder, s.run);
  report.weights = weights_hash(s.model.folder);
  report.ranks = s.ranks;
  report.rows = s.settings.rows;
  report.reference = s.settings.reference;
  report.layout = s.video.layout;
  report.run = s.run.identity({s.video.seed});
  return report;
}

VerifyReport verify(const GenerateOptions& given, const VerifySettings& settings, comm::Communicator* world,
                    const Callbacks& callbacks) {
  GenerateOptions options = checked_options(given);
  const int ranks = world == nullptr ? static_cast<int>(options.ranks.value_or(1)) : world->size();
  const int processes_here = world == nullptr ? 1 : processes_on_this_host(*world);
  if (world != nullptr) options.seed = agreed_seed(*world, options.seed);
  OpenModel model(options);
  options = with_size_of_inputs(options, model.folder);
  GenerateOptions smaller = options;
  const auto reduce = [&] { smaller = reduced(model, options, settings, ranks, processes_here); };
  if (world == nullptr) {
    reduce();
  } else {
    constexpr const char* kSize = "size of a verification";
    fail_together(*world, kSize, reduce);  // a host may refuse alone
    // Rank 0's: predictions of other machines may differ.
    int64_t* const sizes[] = {&smaller.num_inference_steps, &smaller.num_frames, &smaller.width, &smaller.height};
    for (int64_t* size : sizes) world->broadcast(0, size, sizeof *size, kSize);
  }
  Verification verification(model, smaller, settings, ranks);
  if (world == nullptr) verification.run_on_threads(callbacks);
  else verification.run(*world, callbacks);
  if (world != nullptr && world->rank() != 0) return {};
  VerifyReport report = verification.report(callbacks);
  report.size = size_text(smaller);
  if (const std::string asked = size_text(options); asked != report.size) report.reduced = asked;
  return report;
}

}  // namespace zoetrope::pipeline
