// A video from a prompt, from a program of your own: generate_clip MODEL_DIR "a prompt" clip.mp4
#include <zoetrope/zoetrope.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: generate_clip MODEL_DIR PROMPT OUTPUT\n");
    return 2;
  }
  zoetrope::GenerateOptions options;
  options.model = argv[1];
  options.prompt = argv[2];
  options.output = argv[3];
  options.height = 64;
  options.width = 64;
  options.num_frames = 9;
  options.num_inference_steps = 4;
  options.ranks = 2;  // threads of this process that share the work
  zoetrope::GenerateCallbacks callbacks;
  callbacks.step = [](int64_t done, int64_t total, double seconds) {
    std::printf("step %lld of %lld: %.2f s\n", static_cast<long long>(done), static_cast<long long>(total), seconds);
  };
  try {
    const zoetrope::GenerateResult result = zoetrope::generate(options, callbacks);
    std::printf("%swrote %s\n", result.timing.c_str(), result.written.c_str());
  } catch (const zoetrope::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
