#include "pipeline/generate.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "pipeline/agreement.h"
#include "pipeline/dump.h"
#include "pipeline/run.h"
#include "pipeline/videos.h"

namespace zoetrope::pipeline {
namespace {

// Opens every output and abandons it: what cannot be written is said before the first video is computed.
void try_outputs(const GenerateOptions& video) {
  VideoFormat format;
  format.width = static_cast<int>(video.width);
  format.height = static_cast<int>(video.height);
  format.fps = static_cast<double>(video.fps);
  video_file(video.output)(format);
  const Dump dump(video.dump);
  if (!video.trace.empty()) check_writable(video.trace);
}

std::string seed_text(int64_t seed) { return seed < 0 ? "a seed that is drawn" : fmt::format("seed {}", seed); }

// `run`: this process' part of one Run, with its frames into a file. `first`: whether rank 0 is here.
template <typename RunVideo>
void generate_files(const std::vector<GenerateOptions>& videos, bool first, const Callbacks& callbacks,
                    const VideoDone& done, RunVideo&& run) {
  for (const GenerateOptions& video : videos) {
    check_options(video);
    if (video.output.empty()) fail("output: name a file (NAME.mp4, NAME.gif, NAME.png) or a folder");
  }
  OpenModel model(videos.front());
  const bool several = videos.size() > 1;
  for (const GenerateOptions& video : videos) {
    if (!several) break;  // its run does both
    check_request(model, video);
    if (first) try_outputs(video);
  }
  for (size_t i = 0; i < videos.size(); ++i) {
    const GenerateOptions& video = videos[i];
    GenerateResult result;
    result.number = i + 1;
    result.videos = videos.size();
    if (several && first && callbacks.note)
      callbacks.note(
          fmt::format("Video {} of {}: {}, '{}'", i + 1, videos.size(), seed_text(video.seed), video.prompt));
    std::error_code ignored;
    result.replaced = std::filesystem::is_regular_file(video.output, ignored);
    result.written = video.output;
    try {
      Run one(model, video);
      static_cast<Video&>(result) = run(one, video_file(video.output));
    } catch (const Error& error) {
      if (!several) throw;
      fail("video {} of {}: {}", i + 1, videos.size(), error.what());
    }
    if (first && done) done(std::move(result));
  }
}

// What all ranks must have alike before the first video: each checks its own settings again.
std::string series_text(const std::vector<GenerateOptions>& videos) {
  std::string text = fmt::format("number of videos={}\n", videos.size());
  for (size_t i = 0; i < videos.size(); ++i) text += fmt::format("prompt {}={}\n", i + 1, videos[i].prompt);
  return text;
}

}  // namespace

void generate(const GenerateOptions& options, const Callbacks& callbacks, const VideoDone& done) {
  generate_files(videos_of(options), true, callbacks, done,
                 [&](Run& run, const OpenSink& file) { return run.run_on_threads(file, callbacks); });
}

void generate(comm::Communicator& world, const GenerateOptions& options, const Callbacks& callbacks,
              const VideoDone& done) {
  const std::vector<GenerateOptions> videos = videos_of(options);
  require_agreement(world, series_text(videos));
  generate_files(videos, world.rank() == 0, callbacks, done,
                 [&](Run& run, const OpenSink& file) { return run.run(world, file, callbacks); });
}

}  // namespace zoetrope::pipeline
