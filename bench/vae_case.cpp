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
#include "models/wan/vae/vae_layout.h"
#include "pipeline/dtype_name.h"

namespace zoetrope::bench {
namespace {

constexpr int kMostFrames = 100000;

constexpr const char* kNote =
    "Latents to float32 frames, which are thrown away. GFLOP are those that are executed: taps of convolutions that "
    "fall on the zeros around a clip are not, and products that nearest upsampling makes equal are done once; "
    "dense_gflop counts them all. 'of peak', 'resident' and 'above' as in `bench model`. Before timing, a few pixels "
    "went through the same weights and were compared with float64.";

class VaeBench : private WholeModel {
 public:
  VaeBench(const VaeSettings& settings, const Progress& progress, Outcome& outcome)
      : WholeModel("vae", settings.published, progress, outcome,
                   {{"height", "height"},
                    {"width", "width"},
                    {"num_frames", "frames"},
                    {"dtype", "dtype"},
                    {"threads", "threads"},
                    {"dense_gflop", "dense GFLOP", Format::kOneDecimal, true},
                    {"load_peak_bytes", "resident while loading", Format::kBytes, true}},
                   {{"num_frames", "frames"}, {"dtype", "dtype"}}),
        settings_(settings) {}

  void run() {
    const std::vector<int> frames = parse_counts("num_frames", settings_.num_frames, 1, kMostFrames);
    for (const int count : frames) latents_of(count);
    for (const std::string& dtype : choose_dtypes("dtype", settings_.published.dtype)) {
      say(dtype + ": making weights");
      forget_peak_resident();
      const DType type = pipeline::dtype_of(dtype);
      const auto source = model_.source(Part::kVae, threads_);
      const auto weights = std::make_shared<wan::VaeWeights>(model_.vae(), std::make_shared<io::Weights>(source),
                                                             wan::VaeParts::kDecoder, type);
      const int64_t load_peak = peak_resident_bytes();
      for (const int count : frames) run_case(count, dtype, source, weights, load_peak);
    }
  }

  std::vector<Section> sections() {
    return WholeModel::sections({"The VAE's decoder", kNote, "Where the time of the last decoding went"});
  }

 private:
  Shape latents_of(int64_t frames) const {
    const int64_t spatial = model_.vae().spatial_factor(), temporal = model_.vae().temporal_factor();
    for (const auto& [key, value] : {std::pair("height", settings_.height), std::pair("width", settings_.width)}) {
      if (value % spatial != 0) fail("{}={} is no size of this VAE: a multiple of {} is", key, value, spatial);
    }
    if ((frames - 1) % temporal != 0) {
      fail("num_frames={} is no length of this VAE: a multiple of {} plus 1 is", frames, temporal);
    }
    return {model_.vae().z_dim, 1 + (frames - 1) / temporal, settings_.height / spatial, settings_.width / spatial};
  }

  void run_case(int64_t frames, const std::string& dtype, const std::shared_ptr<const io::WeightSource>& source,
                const std::shared_ptr<const wan::VaeWeights>& weights, int64_t load_peak) {
    const DType type = pipeline::dtype_of(dtype);
    const Shape shape = latents_of(frames);
    const double dense = wan::vae_decoder_dense_flop(model_.vae(), shape[1], shape[2], shape[3]);
    const double flop = wan::vae_decode_flops(model_.vae(), shape[1], shape[2], shape[3]);
    say(fmt::format("{} {} frames: {:.2f} TFLOP", dtype, frames, flop * 1e-12));
    const Tensor latents(DType::kF32, shape);
    fill_normal(latents, 1);
    wan::VaeDecoder decoder(weights);
    std::string bad;  // of the frames, looked at as they come
    bool look = true;
    int64_t made = 0;
    const auto decode = [&] {
      made = 0;
      decoder.decode(stream_, latents, [&](int64_t, const TensorView& part) {
        made += part.extent(0);
        if (look && bad.empty()) bad = degenerate(part);
      });
    };
    Verdict verdict;
    Timed timed = time(
        type, flop, decode,
        [&] {
          look = false;
          say(fmt::format("{} {} frames: checking", dtype, frames));
          ZT_CHECK(made == frames, "{} frames of {}", made, frames);
          return check_vae_decoder(weights, source, type, stream_);
        },
        [&] { return bad; }, verdict);
    timed.figures.peak_bytes = std::max(timed.figures.peak_bytes, load_peak);
    std::vector<Cell> row = row_of({settings_.height, settings_.width, frames, dtype, int64_t{threads_}, dense * 1e-9},
                                   timed, flop, Part::kVae, type, verdict);
    table_.cell(row, "load_peak_bytes") = load_peak;
    add(std::move(row), timed, {frames, dtype});
  }

  const VaeSettings& settings_;
};

}  // namespace

OptionSet describe(VaeSettings& settings) {
  OptionSet options = describe_published(settings.published);
  options.integer("height", settings.height, {1, 1 << 16}, "pixels; a multiple of 8, or 16 for the VAE of 2.2")
      .integer("width", settings.width, {1, 1 << 16}, "pixels; a multiple of 8, or 16 for the VAE of 2.2")
      .text("num_frames", settings.num_frames, "frames of the video, 4k + 1, one row each");
  return options;
}

std::vector<Section> bench_vae(const VaeSettings& settings, const Progress& progress, Outcome& outcome) {
  VaeBench bench(settings, progress, outcome);
  bench.run();
  return bench.sections();
}

}  // namespace zoetrope::bench
