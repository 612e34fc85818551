// The videos of one run of `zoetrope generate`: every prompt with every seed, and the files of each.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// One per video, in the order in which they are made: all seeds of the first prompt, then those of the next. Each has
// its own prompt, seed, output, dump and trace, and a batch_size of 1. Reads the file of prompts. Throws Error for keys
// that do not go together, and where two videos would write the same file.
std::vector<GenerateOptions> videos_of(const GenerateOptions& options);

// With per_device_batch_size × `ranks` videos in one batch, where no key of ours says how many; the same otherwise.
// Throws Error where that is not a whole number, or more than a batch can be.
GenerateOptions with_device_batch(const GenerateOptions& options, int ranks);

// Throws Error for keys that do not go together where `videos` are made, as a batch of more than these.
void check_series(const GenerateOptions& options, size_t videos);

// Those of the key `prompts`, which names a file or holds them with a line feed after each. Throws Error where there
// are none, and for blank ones.
std::vector<std::string> listed_prompts(const GenerateOptions& options);

// How many videos the keys ask for; reads the file of prompts.
int64_t count_videos(const GenerateOptions& options);

// The name of one of `count` files or folders: clip.mp4 is clip_000.mp4, clip_001.mp4, …; frames/ is frames_000/, …;
// x%04d.png is x000-%04d.png, …. Empty and single ones stay as they are.
std::string numbered(const std::string& path, size_t index, size_t count);

}  // namespace zoetrope::pipeline
