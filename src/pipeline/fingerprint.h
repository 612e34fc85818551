// What of a checkpoint folder decides the video, in a few lines: processes that were given the same path on different
// machines compare them (agreement.h).
#pragma once

#include <string>
#include <string_view>

#include "pipeline/generate_options.h"
#include "pipeline/model_folder.h"

namespace zoetrope::pipeline {

// "model/transformer/config.json=<hash>" and so on, one line a file, each with a line feed: configs, tokenizer and
// index files whole, of weight files size and header and the first and last 4 KiB of data. That is read in
// milliseconds and tells other weights of the same shapes apart; one differing weight in the middle it does not see.
std::string fingerprint(const ModelFolder& model);

// Likewise of the file that `latents` names, with 4 KiB of each tensor: "latents NAME=<hash>"; empty without one.
inline constexpr std::string_view kNoiseLine = "latents ";
std::string noise_fingerprint(const GenerateOptions& options);

// One number for the weights of a transformer, LoRA files and their strengths included, wherever its files are and
// whatever they are called. Reads 4 KiB from the middle of each tensor: a LoRA that was merged changes some of these
// bytes.
std::string transformer_identity(const ModelFolder& model, size_t expert);

}  // namespace zoetrope::pipeline
