// Two videos from one opened model, from a program of your own: generate_clip MODEL_DIR "a prompt" clip.mp4
// The first goes into the file while it is being decoded, the second stays in memory.
#include <zoetrope/zoetrope.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: generate_clip MODEL_DIR PROMPT OUTPUT\n");
    return 2;
  }
  zoetrope::ModelOptions options;
  options.ranks = 2;  // threads of this process that share the work
  options.keep_weights = zoetrope::KeepWeights::kAll;
  zoetrope::Request request;
  request.prompt = argv[2];
  request.height = 64;
  request.width = 64;
  request.num_frames = 9;
  request.num_inference_steps = 4;
  zoetrope::Callbacks callbacks;
  callbacks.step = [](int64_t done, int64_t total, double seconds) {
    std::printf("step %lld of %lld: %.2f s\n", static_cast<long long>(done), static_cast<long long>(total), seconds);
  };
  try {
    zoetrope::Model model = zoetrope::Model::open(argv[1], options);
    const zoetrope::Video first = model.generate(request, zoetrope::video_file(argv[3]), callbacks);
    std::printf("%swrote %s\n", first.timing.c_str(), argv[3]);

    request.seed = 1;
    const zoetrope::Video second = model.generate(request, callbacks);
    std::printf(
        "seed 1: %lld frames of %lld x %lld in memory\n", static_cast<long long>(second.frames.view().extent(0)),
        static_cast<long long>(second.frames.view().extent(2)), static_cast<long long>(second.frames.view().extent(1)));
  } catch (const zoetrope::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
