// What of a checkpoint folder decides the video, in a few lines: processes that were given the same path on different
// machines compare them (agreement.h).
#pragma once

#include <string>
#include <string_view>

#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// "model/transformer/config.json=<hash>" and so on, one line a file, each with a line feed: configs, tokenizer and
// index files whole, of weight files the header and 4 KiB from the middle of each tensor: a LoRA that was merged
// changes some of these bytes; one differing weight they may not show. Takes milliseconds from the page cache, seconds
// from a cold disk.
std::string fingerprint(const ModelFolder& model);

// Likewise of the file that `latents` names: "latents NAME=<hash>"; empty without one.
inline constexpr std::string_view kNoiseLine = "latents ";
std::string noise_fingerprint(const GenerateOptions& options);

// One number for the weights of a transformer, LoRA files and their strengths included, wherever its files are and
// whatever they are called; of two experts also for which of them it is.
std::string transformer_identity(const ModelFolder& model, size_t expert);

}  // namespace zoetrope::pipeline
