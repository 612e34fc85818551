// The one description of every key of a generation run.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <string>

#include "zoetrope/model.h"

#include "base/options.h"
#include "kernels/conv/frame_conv.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::pipeline {

// Of the key `hardware`, wherever something is planned.
inline constexpr const char* kHardwareHelp =
    "the planner's profile of the machine: a name of configs/hardware/ or a file; unset: measured by `zoetrope "
    "calibrate` or at first use";

// The value of int8_layers that leaves the choice to a budget.
inline constexpr const char* kChosenLayers = "auto";

// Everything that `zoetrope generate` runs with.
struct GenerateOptions : ModelOptions, Request {
  std::string model;               // checkpoint folder; with random weights a name of configs/ too
  std::string prompts;             // instead of prompt: a file of lines, or lines that each end in a line feed
  int64_t num_videos = 1;          // of each prompt, with seeds that follow one another; videos.h
  int64_t batch_size = 1;          // videos that are denoised together; in a Run all of them
  std::string recipe;              // stays empty: what a recipe says is in the fields (recipes.h)
  std::string output = "out.mp4";  // see video_file()
  std::string grid;                // file that holds all videos of several, beside each other
  std::string codec = "auto";      // of the file, see VideoFormat; auto: its default
  std::optional<int64_t> crf;      // likewise
  std::string dump;                // folder for run.safetensors
  double videos_per_device = 0;    // key per_device_batch_size of MaxDiffusion; 0: not given
  bool frames_in_memory = false;   // no key: the caller may want Video::frames
  bool keeps_what_fits = false;    // no key: keep_weights was not set, and may be less where memory is short
  std::vector<std::string> notes_of_inputs{};  // no key: where frames or shape of inputs replace what was asked
};

// "keep_weights=none".
std::string keep_weights_text(KeepWeights keep);

// The keys that name a component's file, by the component, and where their values are.
const std::map<std::string, std::string GenerateOptions::*>& file_keys();
// The files that are named so.
std::map<std::string, std::filesystem::path> named_files(const GenerateOptions& options);

// The file in it that `dump` names: FOLDER/run.safetensors.
std::filesystem::path dump_file(const std::string& folder);

// Of the file with the frames; without the tags that say what it shows.
VideoFormat video_format(const GenerateOptions& options);
// Throws Error where a file of the name `output` cannot be of the format that the options say. Opens nothing.
void check_output_format(const GenerateOptions& options);

// What the transformer's activations are: BF16 where some of its matrices are multiplied in int8.
DType activation_dtype(const ModelOptions& options);
// As the VAE's convolutions take it.
kernels::ConvAlgorithm convolution_of(const ModelOptions& options);

// Binds the keys to the fields; `options` must outlive the set.
OptionSet describe_options(GenerateOptions& options);

// The keys whose values are not the defaults, with their values.
std::map<std::string, std::string> changed_settings(const GenerateOptions& options);

// Of each expert: the velocity is u + guidance · (c − u) of the unconditional and the conditional branch. 1 where there
// is one branch.
std::array<double, 2> guidance_of(const Request& request);
// Denoising steps: as many as sigmas or timesteps where they are set, whatever num_inference_steps says.
int64_t steps_of(const Request& request);

// Throws Error for a budget by which nothing is chosen, or whose spending nobody measures.
void check_budget(const GenerateOptions& options);
// The same for the step cache of a request alone.
void check_cache_within_budget(const GenerateOptions& options);
// Whether something is chosen by what `zoetrope int8` measured.
bool spends_measured_errors(const GenerateOptions& options);

// Throws Error for what is wrong whatever the model is: values out of range, which programs can set, an empty model.
void check_model_options(const GenerateOptions& options);
// Also for an empty prompt and for sizes no Wan model can make (naming the nearest that it can).
void check_options(const GenerateOptions& options);

}  // namespace zoetrope::pipeline
