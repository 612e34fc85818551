// `bench vae`: latents to frames.
#include "base/error.h"
#include "bench/cases.h"
#include "bench/machine.h"
#include "bench/model_check.h"
#include "bench/whole_model.h"
#include "bench/words.h"
#include "models/wan/model_flops.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_cost.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::bench {
namespace {

constexpr int kMostFrames = 100000;

struct Convolution {
  const char* name;
  kernels::ConvAlgorithm algorithm;
  bool in_all;
};
constexpr Convolution kConvolutions[] = {{"direct", kernels::ConvAlgorithm::kDirect, true},
                                         {"auto", kernels::ConvAlgorithm::kAuto, true},
                                         {"winograd", kernels::ConvAlgorithm::kWinograd, false}};

constexpr const char* kNote =
    "Latents to float32 frames, which are discarded. GFLOP are those that are executed: taps of convolutions on the "
    "zeros around a clip are skipped, and results that nearest upsampling makes equal are computed once; dense_gflop "
    "counts them all. Convolutions by Winograd count as direct ones, of whose products they execute 4 of 9: 'of peak' "
    "may exceed 100 %. 'of peak', 'resident' and 'above' as in `bench model`. Before timing, a few pixels went through "
    "the same weights and were compared with float64.";

class VaeBench : private WholeModel {
 public:
  VaeBench(const VaeSettings& settings, const Progress& progress, Outcome& outcome)
      : WholeModel("vae", settings.published, progress, outcome,
                   {{"height", "height"},
                    {"width", "width"},
                    {"num_frames", "frames"},
                    {"dtype", "dtype"},
                    {"convolution", "convolution"},
                    {"threads", "threads"},
                    {"dense_gflop", "dense GFLOP", Format::kOneDecimal, true},
                    {"load_peak_bytes", "resident while loading", Format::kBytes, true}},
                   {{"num_frames", "frames"}, {"dtype", "dtype"}, {"convolution", "convolution"}}),
        settings_(settings) {}

  std::vector<Section> run() {
    const std::vector<int> frames = parse_counts("num_frames", settings_.num_frames, 1, kMostFrames);
    for (const int count : frames) latent_of(count);  // refused early
    for (const std::string& dtype : choose_dtypes("dtype", settings_.published.dtype)) {
      for (const Convolution& convolution : kConvolutions) {
        if (convolution.name != settings_.convolution && !(convolution.in_all && settings_.convolution == "all"))
          continue;
        if (const std::string why = kernels::winograd_refusal();
            convolution.algorithm == kernels::ConvAlgorithm::kWinograd && !why.empty())
          fail("convolution=winograd: {}", why);
        say(fmt::format("{} {}: loading weights", dtype, convolution.name));
        forget_peak_resident();
        const auto source = model_.source(Part::kVae, threads_);
        const auto weights = std::make_shared<wan::VaeWeights>(
            model_.vae(), source,
            wan::VaeUse{wan::VaeParts::kDecoder, pipeline::dtype_of(dtype), convolution.algorithm});
        const Loaded loaded{dtype, convolution.name, source, weights, peak_resident_bytes()};
        for (const int count : frames) run_case(count, loaded);
      }
    }
    return sections("The VAE's decoder", kNote, "Where the time of the last decoding went");
  }

 private:
  Shape latent_of(int64_t frames) const {
    return model_.latent_of(settings_.height, settings_.width, frames, Part::kVae);
  }

  struct Loaded {
    std::string dtype, convolution;
    std::shared_ptr<const io::WeightSource> source;
    std::shared_ptr<const wan::VaeWeights> weights;
    int64_t load_peak;
  };

  void run_case(int64_t frames, const Loaded& loaded) {
    const auto& [dtype, convolution, source, weights, load_peak] = loaded;
    const DType type = pipeline::dtype_of(dtype);
    const Shape latent = latent_of(frames);
    const double dense = wan::vae_decoder_dense_flop(model_.vae(), latent[0], latent[1], latent[2]);
    const double flop = wan::vae_decode_flops(model_.vae(), latent[0], latent[1], latent[2]);
    say(fmt::format("{} {} {} frames: {:.2f} TFLOP", dtype, convolution, frames, flop * 1e-12));
    const Tensor latents(DType::kF32, {model_.vae().z_dim, latent[0], latent[1], latent[2]});
    fill_normal(latents, 1);
    wan::VaeDecoder decoder(loaded.weights);
    std::string bad;  // what is wrong with the frames of the first run
    bool first_run = true;
    int64_t decoded = 0;
    const auto decode = [&] {
      decoded = 0;
      decoder.decode(stream_, latents, [&](int64_t, const TensorView& part) {
        decoded += part.extent(0);
        if (first_run && bad.empty()) bad = degenerate(part);
      });
    };
    const auto check = [&] {
      first_run = false;
      say(fmt::format("{} {} {} frames: checking", loaded.dtype, loaded.convolution, frames));
      ZT_CHECK(decoded == frames, "{} frames of {}", decoded, frames);
      return check_vae_decoder(loaded.weights, loaded.source, type, stream_);
    };
    measure({Part::kVae, type, flop, decode, check, [&] { return bad; }, load_peak},
            {settings_.height, settings_.width, frames, dtype, convolution, int64_t{threads_}, dense * 1e-9, load_peak},
            {frames, dtype, convolution});
  }

  const VaeSettings& settings_;
};

}  // namespace

OptionSet describe(VaeSettings& settings) {
  OptionSet options = describe_published(settings.published);
  options.integer("height", settings.height, {1, 1 << 16}, "pixels; a multiple of 8, or 16 for the VAE of 2.2")
      .integer("width", settings.width, {1, 1 << 16}, "pixels; a multiple of 8, or 16 for the VAE of 2.2")
      .text("num_frames", settings.num_frames, "frames of the video, 4k + 1, one row each")
      .choice("convolution", settings.convolution, {"auto", "direct", "winograd", "all"},
              "as vae_convolution= of a run; all: direct, then auto");
  return options;
}

std::vector<Section> bench_vae(const VaeSettings& settings, const Progress& progress, Outcome& outcome) {
  return VaeBench(settings, progress, outcome).run();
}

}  // namespace zoetrope::bench
