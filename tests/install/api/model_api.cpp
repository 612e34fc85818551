// Calls every function of zoetrope/model.h and zoetrope/video.h: model_api MODEL_DIR OUTPUT.mp4
// Describes a known model by its name, without weights: model_api NAME
#include <zoetrope/zoetrope.h>

#include <cstdio>
#include <memory>
#include <utility>

using namespace zoetrope;

// Counts bytes, rounding as it is inherited.
class Counter final : public FrameSink {
 public:
  Counter(int64_t& bytes, int64_t frame) : bytes_(bytes), frame_(frame) {}
  void add_frame(const uint8_t*) override { bytes_ += frame_; }
  void finish() override {}
  void add_values(const float* rgb) override { FrameSink::add_values(rgb); }
  PixelRounding rounding() const override { return FrameSink::rounding(); }

 private:
  int64_t& bytes_;
  const int64_t frame_;
};

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) return 2;
  try {
    ModelOptions options;
    if (argc == 2) {
      options.weights = WeightSource::kRandom;
      std::puts(Model::open(argv[1], options).describe({.prompt = "a red cat"}).c_str());
      return 0;
    }
    options.keep_weights = KeepWeights::kTransformer;
    Model opened = Model::open(argv[1], options);
    Model model = std::move(opened);
    opened = std::move(model);
    Request request;
    request.prompt = "a red cat";
    request.height = request.width = 32;
    request.num_frames = 5;
    request.num_inference_steps = 1;
    const bool described = !opened.describe(request).empty();
    const Video video = opened.generate(request);
    opened.generate(request, video_file(argv[2]));
    int64_t bytes = 0;
    comm::run_ranks(1, [&](comm::Communicator& world) {
      opened.generate(world, request, [&](const VideoFormat& format) {
        return std::make_unique<Counter>(bytes, int64_t{3} * format.width * format.height);
      });
    });
    const bool batched = opened.generate(std::vector<Request>{request, request}).size() == 2;
    comm::run_ranks(1, [&](comm::Communicator& world) { opened.generate(world, std::vector<Request>{request}); });
    opened.release_weights();
    return described && batched && video.frames.size() == bytes && bytes > 0 ? 0 : 1;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
