// What `zoetrope generate` runs: the videos of its options, batch after batch over one opened model, each into files of
// its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "zoetrope/communicator.h"

#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// With what was written.
struct GenerateResult : Video {
  std::string written;            // a file, a folder, or "FIRST to LAST" of numbered frames
  int64_t replaced = 0;           // files of these names that were there before
  int64_t removed = 0;            // frames behind them, of an older, longer clip
  size_t number = 1, videos = 1;  // this is video `number` of so many
  std::string grid;               // of the last video: the file that shows all of them; empty: there is none
};

// Called on rank 0 for each video after its batch, when the files are complete. What is said of the whole batch
// (timing, summary, memory) is in its first video. Of a batch that an Error ends, the videos that are in their files
// have a seed and nothing else.
using VideoDone = std::function<void(GenerateResult)>;

// Over options.ranks threads of this process. Every video is checked before the first is computed. An Error of a later
// step leaves the videos that are done.
void generate(const GenerateOptions& options, const Callbacks& callbacks = {}, const VideoDone& done = {});
// The part of one rank. Collective over `world`.
void generate(comm::Communicator& world, const GenerateOptions& options, const Callbacks& callbacks = {},
              const VideoDone& done = {});

}  // namespace zoetrope::pipeline
