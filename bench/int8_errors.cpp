#include "bench/int8_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "bench/attention_data.h"
#include "bench/forward_inputs.h"
#include "comm/launcher.h"
#include "io/weights/weights.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/patchify.h"
#include "models/wan/transformer/transformer.h"
#include "pipeline/model_files/fingerprint.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/stages/guidance.h"
#include "pipeline/stages/prompt_context.h"
#include "planner/available.h"
#include "tensor/copy_of.h"
#include "tensor/element.h"

namespace zoetrope::bench {
namespace {

constexpr int64_t kFrames = 2, kHeight = 4, kWidth = 8;  // tokens
constexpr int64_t kBranches = 2;                         // of guidance: conditional, unconditional
// Limits of attention in int8 that a budget can choose from, descending. Normal numbers are off by 0.7 to 0.9 %.
const std::vector<double> kAttentionLimits = {attention::kInt8Limit, 0.03, 0.02, 0.015, 0.01};
// Differences are multiplied by this, or by less where they would be more than that part of the stream.
constexpr double kFactor = 16, kLargestPart = 0.2;
constexpr uint64_t kOtherFace = 7;  // a seed
constexpr int64_t kTouched = 16;    // of so many values one is changed by its last bit, to redo the rounding behind
constexpr double kSteps = 20;       // of the way from noise to a video, at least
// Of the way, where the last errors are measured: the last step but few of usual runs. Fifty steps with flow_shift=3
// end at 0.058, twenty with 5 at 0.21.
constexpr double kEnd = 0.05;

// Names of the residual stream behind a block, by its number as TransformerConfig::int8_blocks counts.
std::map<std::string, size_t, std::less<>> stages_of(const wan::TransformerConfig& config) {
  std::map<std::string, size_t, std::less<>> stages;
  for (int64_t i = 0; i < config.num_layers; ++i) stages.emplace(fmt::format("block.{}", i), stages.size());
  for (size_t i = 0; i < config.vace_layers.size(); ++i)
    stages.emplace(fmt::format("vace.{}.control", i), stages.size());
  return stages;
}

// Of a velocity [kBranches, tokens, C], or of what it is off from another, over `unit`.
pipeline::BranchNorms norms(const TensorView& velocity, double unit, const TensorView& other = {}) {
  const int64_t half = velocity.size() / kBranches;
  pipeline::BranchNorms result;
  for (int64_t i = 0; i < half; ++i) {
    double c = element(velocity, i), u = element(velocity, half + i);
    if (other) {
      c -= element(other, i);
      u -= element(other, half + i);
    }
    result.conditional += c * c / unit;
    result.unconditional += u * u / unit;
    result.product += c * u / unit;
  }
  if (!std::isfinite(result.conditional + result.unconditional + result.product))
    fail("the model gives zeros or values that are not finite, so errors cannot be measured");
  return result;
}

// The relative L2 by which streams are off.
double distance(const TensorView& a, const TensorView& b) {
  double error = 0, norm = 0;
  for (int64_t i = 0; i < b.size(); ++i) {
    const double x = element(a, i), y = element(b, i);
    error += (x - y) * (x - y);
    norm += y * y;
  }
  const double result = std::sqrt(error / norm);
  if (!std::isfinite(result)) fail("the model gives zeros or values that are not finite, so errors cannot be measured");
  return result;
}

void change_last_bits(const TensorView& stream) {
  for (int64_t i = 0; i < stream.size(); i += kTouched) stream.data<uint16_t>()[i] ^= 1;
}

// Of a run, [kBranches, rows, text_dim] BF16: of the prompt and the negative one, and zero past their tokens. Random
// rows with random weights.
Tensor text_of(const pipeline::ModelFolder& model, const Int8ErrorSettings& settings, Stream& stream) {
  const int64_t rows = settings.run.max_sequence_length;
  const pipeline::PromptTokens tokens =
      pipeline::prompt_tokens(model, {settings.run.prompt, settings.run.negative_prompt}, rows);
  const Tensor encoded(DType::kF32, {kBranches, rows, model.experts.front().config.text_dim});
  if (model.text_encoder.checkpoint() != nullptr) {
    pipeline::encode_prompts(model, tokens, settings.run.text_encoder_dtype, stream, nullptr, encoded, settings.poll);
  } else {
    for (int64_t i = 0; i < kBranches; ++i)
      fill_normal(encoded.view().select(0, i).slice(0, 0, tokens.lengths[static_cast<size_t>(i)]),
                  static_cast<uint64_t>(i));
  }
  Tensor text(DType::kBF16, encoded.shape());
  for (int64_t i = 0; i < text.size(); ++i) set_element(text, i, element(encoded, i));
  return text;
}

// What an expert denoises, and where it is measured.
struct Range {
  double first, last;  // timesteps
  std::vector<double> timesteps;
};

// Euler steps from one timestep to another; `train`: the timestep of pure noise.
int64_t steps_between(double from, double to, double train) {
  return static_cast<int64_t>(std::ceil((from - to) / train * kSteps));
}

// The same for every branch.
Tensor for_branches(const Tensor& one) {
  if (!one) return {};
  Shape shape = one.shape();
  shape[0] = kBranches;
  Tensor all(one.dtype(), shape);
  for (int64_t i = 0; i < kBranches; ++i)
    std::memcpy(all.view().select(0, i).raw(), one.view().raw(), one.view().bytes());
  return all;
}

// Measures one expert. `latents` [kBranches, C_in, F, H, W] F32, both branches alike: where its work begins, and at the
// end where it ends.
class Measurement {
 public:
  Measurement(const pipeline::ModelFolder& model, size_t expert, const Tensor& text, const Int8ErrorSettings& settings,
              Stream& stream, const std::function<void()>& done, Tensor& latents)
      : expert_(model.experts[expert]),
        guidance_(pipeline::guidance_of(settings.run)[expert]),
        train_(static_cast<double>(model.scheduler.num_train_timesteps)),
        settings_(settings),
        stream_(stream),
        done_(done),
        latents_(latents),
        config_(expert_.config),
        stages_(stages_of(config_)),
        size_{.latent = {kFrames * config_.patch_size[0], kHeight * config_.patch_size[1],
                         kWidth * config_.patch_size[2]},
              .text_rows = text.extent(1),
              .image_rows = kRunImageRows},
        inputs_(config_, size_, DType::kBF16) {
    inputs_.text = copy_of(text);
    for (Tensor* input : {&inputs_.latents, &inputs_.control, &inputs_.face}) *input = for_branches(*input);
    if (inputs_.face) fill_normal(inputs_.face.view().select(0, 1), kOtherFace);  // a run's is black there
    if (latents_) inputs_.latents = copy_of(latents_);
  }

  std::vector<pipeline::Int8Errors::At> run(const Range& range) {
    for (const double t : range.timesteps)
      at_.push_back({.timestep = t, .blocks = std::vector<pipeline::BranchNorms>(stages_.size())});
    exact_.resize(at_.size());
    in_int8_.resize(at_.size());
    // The weights of one dtype at a time: together they need half as much memory again.
    with_weights(config_, [&](const Weights& weights) {
      with_forward(weights, {}, [&](Forward& forward) {
        double timestep = range.first;
        each_timestep([&](size_t t) {
          denoise(forward, timestep, at_[t].timestep);
          timestep = at_[t].timestep;
          exact_[t].latents = copy_of(inputs_.latents);
          record_exact(forward, t);
        });
        latents_ = copy_of(inputs_.latents);  // of the last timestep, where the next expert begins
      });
      for (const double limit : kAttentionLimits) {
        with_forward(weights, {.attention_dtype = attention::AttentionDtype::kInt8, .attention_int8_limit = limit},
                     [&](Forward& forward) {
                       each_timestep([&](size_t t) { at_[t].attention.push_back(error_of_all(forward, t)); });
                     });
      }
    });
    with_weights(config_.with_int8("all"), [&](const Weights& weights) {
      with_forward(weights, {}, [&](Forward& forward) { each_timestep([&](size_t t) { record_int8(forward, t); }); });
    });
    with_weights(config_, [&](const Weights& weights) {
      with_forward(weights, {},
                   [&](Forward& forward) { each_timestep([&](size_t t) { measure_blocks(forward, t); }); });
    });
    return std::move(at_);
  }

 private:
  // Called with the residual stream behind a block, which may be read and replaced.
  using AtBlock = std::function<void(size_t block, const TensorView& stream)>;
  using Forward = std::function<const Tensor&(const Tensor& latents, double timestep, const AtBlock& at_block)>;
  using Weights = std::shared_ptr<const wan::TransformerWeights>;
  struct Recorded {
    Tensor latents;
    std::vector<Tensor> streams;  // behind each block
    Tensor velocity;
    double unit = 0;  // the squared norm of the conditional one
  };

  template <typename Body>
  void each_timestep(const Body& body) {
    for (size_t t = 0; t < at_.size(); ++t) body(t);
  }

  void with_weights(const wan::TransformerConfig& config, const std::function<void(const Weights&)>& body) {
    io::Weights::Loading loading;
    loading.memory = pipeline::weight_memory_bytes(settings_.run);
    const int threads = stream_.team().size();
    body(wan::TransformerWeights::load(
        config, std::make_shared<const io::Weights>(expert_.weights.source(threads), std::move(loading)), DType::kBF16,
        settings_.poll, threads));
  }

  void with_forward(const Weights& weights, const attention::Strategy& strategy,
                    const std::function<void(Forward&)>& body) {
    const int64_t tokens = wan::token_grid(config_, size_.latent).tokens();
    with_whole_sequence(config_, kBranches, tokens, DType::kBF16, strategy, stream_, [&](auto& attention) {
      wan::Transformer transformer(weights, stream_);
      transformer.prepare(size_.latent, kBranches, attention);
      inputs_.give(transformer);
      const Tensor velocity(DType::kBF16, {kBranches, tokens, config_.patch_output_dim()});
      Forward forward = [&](const Tensor& latents, double timestep, const AtBlock& at_block) -> const Tensor& {
        if (settings_.poll) settings_.poll();
        const std::vector<float> timesteps(kBranches, static_cast<float>(timestep));
        transformer.forward(latents, timesteps, velocity, [&](std::string_view name, const TensorView& value) {
          if (const auto stage = stages_.find(name); stage != stages_.end()) at_block(stage->second, value);
        });
        done_();
        return velocity;
      };
      body(forward);
    });
  }

  const Tensor& forward_at(Forward& forward, size_t t, const AtBlock& at_block) const {
    return forward(exact_[t].latents, at_[t].timestep, at_block);
  }

  // Moves the latents from one timestep to another by Euler steps, as a run does: near a video errors are larger than
  // in noise.
  void denoise(Forward& forward, double from, double to) {
    const int64_t steps = steps_between(from, to, train_);
    const double change = (to - from) / train_ / static_cast<double>(steps);
    Shape shape = inputs_.latents.shape();
    shape[1] = config_.out_channels;  // the others are conditions
    const Tensor branches(DType::kF32, shape);
    const auto branch = [&](int64_t i) {
      const TensorView one = branches.view().select(0, i);
      return std::span<float>(one.data<float>(), static_cast<size_t>(one.size()));
    };
    for (int64_t i = 0; i < steps; ++i) {
      const double timestep = from + (to - from) * static_cast<double>(i) / static_cast<double>(steps);
      const TensorView velocity = forward(inputs_.latents, timestep, [](size_t, const TensorView&) {});
      wan::unpatchify(stream_, velocity, config_.patch_size, branches);
      const std::span<float> guided = branch(0);
      pipeline::guide(guided, branch(1), guidance_, DType::kF32, guided);
      for (int64_t sample = 0; sample < kBranches; ++sample) {
        float* latents = inputs_.latents.view().select(0, sample).data<float>();
        for (const float v : guided) *latents++ += static_cast<float>(change * v);
      }
    }
  }

  pipeline::BranchNorms error(size_t t, const TensorView& velocity) const {
    return norms(velocity, exact_[t].unit, exact_[t].velocity);
  }

  pipeline::BranchNorms error_of_all(Forward& forward, size_t t) const {
    return error(t, forward_at(forward, t, [](size_t, const TensorView&) {}));
  }

  void record_exact(Forward& forward, size_t t) {
    exact_[t].streams.resize(stages_.size());
    exact_[t].velocity = copy_of(forward_at(
        forward, t, [&](size_t block, const TensorView& stream) { exact_[t].streams[block] = copy_of(stream); }));
    exact_[t].unit = norms(exact_[t].velocity, 1).conditional;
    at_[t].velocity = norms(exact_[t].velocity, exact_[t].unit);
    at_[t].rounding = error(t, forward_at(forward, t, [&](size_t block, const TensorView& stream) {
                              if (block == 0) change_last_bits(stream);
                            }));
  }

  void record_int8(Forward& forward, size_t t) {
    at_[t].all = error_of_all(forward, t);
    in_int8_[t].resize(stages_.size());
    forward_at(forward, t, [&](size_t block, const TensorView& stream) {
      in_int8_[t][block] = copy_of(stream);
      copy(stream_, stream, exact_[t].streams[block]);
    });
  }

  void measure_blocks(Forward& forward, size_t t) {
    for (size_t one = 0; one < stages_.size(); ++one) {
      const Tensor &int8 = in_int8_[t][one], &bf16 = exact_[t].streams[one];
      const double part = distance(int8, bf16), factor = std::clamp(kLargestPart / part, 1.0, kFactor);
      const Tensor& velocity = forward_at(forward, t, [&](size_t block, const TensorView& stream) {
        if (block != one) return;
        for (int64_t i = 0; i < stream.size(); ++i)
          set_element(stream, i, element(bf16, i) + factor * (element(int8, i) - element(bf16, i)));
      });
      at_[t].blocks[one] = norms(velocity, exact_[t].unit * factor * factor, exact_[t].velocity);
    }
  }

  const pipeline::Expert& expert_;
  const double guidance_;
  const double train_;  // timesteps of pure noise
  const Int8ErrorSettings& settings_;
  Stream& stream_;
  const std::function<void()>& done_;
  Tensor& latents_;
  const wan::TransformerConfig config_;
  const std::map<std::string, size_t, std::less<>> stages_;
  const ForwardSize size_;
  ForwardInputs inputs_;
  std::vector<pipeline::Int8Errors::At> at_;
  std::vector<Recorded> exact_;
  std::vector<std::vector<Tensor>> in_int8_;
};

// All packed weights in bf16, unless weight_memory says how many of them.
void require_memory(const pipeline::Expert& expert, const Int8ErrorSettings& settings) {
  if (pipeline::weight_memory_bytes(settings.run) > 0) return;
  planner::AvailableQuery query;
  query.user_limit = settings.run.memory_limit;
  const std::vector<planner::MemoryLimit> limits = planner::memory_limits(query);
  const planner::Bytes needed(io::resident_bytes(wan::transformer_tensors(expert.config), DType::kBF16));
  if (!limits.empty() && needed > limits.front().available)
    fail(
        "the transformer's weights in bf16 take {}, and {} is {}; set weight_memory=GB, and the rest is read as it is "
        "used",
        needed.text(), limits.front().what, limits.front().available.text());
}

// At the ends of equal parts of what an expert denoises: errors grow on the way.
Range range_of(const pipeline::ModelFolder& model, size_t expert, const Int8ErrorSettings& settings) {
  const auto train = static_cast<double>(model.scheduler.num_train_timesteps);
  Range range{train, kEnd * train, {}};
  if (model.experts.size() == 2)
    (expert == 0 ? range.last : range.first) =
        train * settings.run.boundary_ratio.value_or(*model.pipeline.boundary_ratio);
  if (!(range.last < range.first))
    fail("boundary_ratio={}: leaves the {} nothing above timestep {:.0f}, where errors are measured last",
         range.first / train, pipeline::expert_name(static_cast<int>(expert)), range.last);
  for (int64_t i = 1; i <= settings.timesteps; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(settings.timesteps);
    range.timesteps.push_back(range.first + share * (range.last - range.first));
  }
  return range;
}

}  // namespace

void measure_int8_errors(const pipeline::ModelFolder& model, const Int8ErrorSettings& settings) {
  for (const pipeline::Expert& expert : model.experts) require_memory(expert, settings);
  Stream stream(comm::process_threads(settings.run.threads));
  const Tensor text = text_of(model, settings, stream);
  const auto train = static_cast<double>(model.scheduler.num_train_timesteps);
  std::vector<Range> ranges;
  int64_t total = 0, done = 0;
  for (size_t i = 0; i < model.experts.size(); ++i) {
    const Range& range = ranges.emplace_back(range_of(model, i, settings));
    double from = range.first;
    for (const double to : range.timesteps) total += steps_between(std::exchange(from, to), to, train);
    total += settings.timesteps * (model.experts[i].config.block_count() + 4 + std::ssize(kAttentionLimits));
  }
  const std::function<void()> count = [&] {
    if (settings.progress) settings.progress(++done, total);
  };
  Tensor latents;
  for (size_t i = 0; i < model.experts.size(); ++i) {
    Measurement measurement(model, i, text, settings, stream, count, latents);
    settings.found({pipeline::transformer_identity(model, i),
                    fmt::format("{} of {}", pipeline::expert_name(static_cast<int>(i)), model.folder.string()),
                    pipeline::guidance_of(settings.run)[i], kAttentionLimits, measurement.run(ranges[i])});
  }
}

}  // namespace zoetrope::bench
