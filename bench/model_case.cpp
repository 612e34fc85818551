// `bench model`: one forward of the transformer as in a denoising step (batch 1, whole sequence, one process).
#include <algorithm>

#include "attention/strategy.h"
#include "base/error.h"
#include "bench/cases.h"
#include "bench/forward_inputs.h"
#include "bench/machine.h"
#include "bench/model_check.h"
#include "bench/whole_model.h"
#include "bench/words.h"
#include "models/wan/model_flops.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::bench {
namespace {

constexpr int kMostFrames = 100000;
constexpr const char *kAsComputed = "as_computed", *kInt8 = "int8";

constexpr const char* kNote =
    "Batch 1, 512 text rows and an image's 257 or 514 where the model takes one, whose keys and values are computed "
    "before, as in a run, once per prompt. GFLOP are those that are executed (models/wan/model_flops.h). 'of peak' is "
    "the median over the repeats of operations per second, relative to the fastest multiply-adds that this machine has "
    "for the dtype, measured right before and after each repeat. 'resident' is the most memory of the process while it "
    "read or generated the weights and computed, file pages included; 'above' is the part of it above the weights in "
    "the dtype. dtype int8 multiplies all blocks but the first and the last in int8; its weights and peak are given "
    "as of bf16, and so are those of attention in int8. Before timing, a few tokens went through the same weights, and "
    "the first block, the last block and the "
    "head were compared with float64.";

class ModelBench : private WholeModel {
 public:
  ModelBench(const ModelSettings& settings, const Progress& progress, Outcome& outcome)
      : WholeModel("model", settings.published, progress, outcome,
                   {{"height", "height"},
                    {"width", "width"},
                    {"num_frames", "frames"},
                    {"tokens", "tokens", Format::kCount},
                    {"layers", "layers"},
                    {"dtype", "dtype"},
                    {"attention_dtype", "attention"},
                    {"threads", "threads"},
                    {"load_peak_bytes", "resident while loading", Format::kBytes, true}},
                   {{"num_frames", "frames"}, {"dtype", "dtype"}, {"attention_dtype", "attention"}}),
        settings_(settings) {}

  std::vector<Section> run() {
    const std::vector<int> frames = parse_counts("num_frames", settings_.num_frames, 1, kMostFrames);
    for (const int count : frames) model_.latent_of(settings_.height, settings_.width, count);  // refused early
    const std::vector<std::string> dtypes = choose_dtypes("dtype", settings_.published.dtype, true);
    const bool with_int8 = std::find(dtypes.begin(), dtypes.end(), "int8") != dtypes.end();
    if (with_int8 && model_.transformer().num_layers < 3)
      fail("dtype=int8: all layers but the first and the last are multiplied in int8, and this model has {}",
           model_.transformer().num_layers);
    const std::vector<std::string> attentions =
        choose_words("attention_dtype", settings_.attention_dtype, {kAsComputed, kInt8});
    for (const std::string& dtype : dtypes)
      for (const std::string& attention : attentions)
        if (attention == kInt8)
          attention::check_attention_dtype(attention::AttentionDtype::kInt8,
                                           dtype == "f32" ? DType::kF32 : DType::kBF16);
    for (const std::string& dtype : dtypes) {
      say(dtype + ": loading weights");
      forget_peak_resident();
      const auto source = model_.source(Part::kTransformer, threads_);
      const bool int8 = dtype == "int8";
      const wan::TransformerConfig config = int8 ? model_.transformer().with_int8("inner") : model_.transformer();
      const auto weights = wan::TransformerWeights::load(config, std::make_shared<io::Weights>(source),
                                                         int8 ? DType::kBF16 : pipeline::dtype_of(dtype));
      const int64_t load_peak = peak_resident_bytes();
      for (const int count : frames)
        for (const std::string& attention : attentions) run_case(count, dtype, attention, source, weights, load_peak);
    }
    return sections("A forward of the transformer", kNote, "Where the time of the last forward went");
  }

 private:
  void run_case(int64_t frames, const std::string& dtype, const std::string& attention,
                const std::shared_ptr<const io::WeightSource>& source,
                const std::shared_ptr<const wan::TransformerWeights>& weights, int64_t load_peak) {
    const wan::TransformerConfig& config = weights->config;
    const Shape latent = model_.latent_of(settings_.height, settings_.width, frames);
    const ForwardSize size{.latent = latent, .text_rows = kRunTextRows, .image_rows = kRunImageRows};
    const int64_t tokens = wan::token_grid(config, latent).tokens();
    const double flop = wan::forward_flop(config, tokens, kRunTextRows, image_rows(config, size)).total();
    say(fmt::format("{} {} tokens: {:.2f} TFLOP", dtype, tokens, flop * 1e-12));
    attention::Strategy strategy;
    if (attention == kInt8) strategy.attention_dtype = attention::AttentionDtype::kInt8;
    with_forward(weights, size, strategy, stream_,
                 [&](const std::function<void()>& forward, const TensorView& velocity) {
                   const auto check = [&] {
                     say(fmt::format("{} {} tokens: checking", dtype, tokens));
                     return check_transformer(weights, source, stream_, strategy);
                   };
                   measure({Part::kTransformer, weights->dtype, flop, forward, check,
                            [&] { return degenerate(velocity); }, load_peak},
                           {settings_.height, settings_.width, frames, tokens, config.num_layers, dtype, attention,
                            int64_t{threads_}, load_peak},
                           {frames, dtype, attention});
                 });
  }

  const ModelSettings& settings_;
};

}  // namespace

OptionSet describe(ModelSettings& settings) {
  OptionSet options = describe_published(settings.published);
  options.integer("height", settings.height, {1, 1 << 16}, "pixels; a multiple of 16")
      .integer("width", settings.width, {1, 1 << 16}, "pixels; a multiple of 16")
      .text("num_frames", settings.num_frames, "frames of the video, 4k + 1, one row each")
      .text("attention_dtype", settings.attention_dtype, "of self-attention: as_computed, int8, or both, one row each");
  return options;
}

std::vector<Section> bench_model(const ModelSettings& settings, const Progress& progress, Outcome& outcome) {
  return ModelBench(settings, progress, outcome).run();
}

}  // namespace zoetrope::bench
