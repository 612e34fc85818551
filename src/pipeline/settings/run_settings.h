// The keys of `zoetrope generate`, and the YAML files that hold them: generate runs them, plan plans them.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/options.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// The keys of the run, and how much is said of it afterwards.
struct RunSettings {
  GenerateOptions run;
  std::string summary = "short";
};

// Binds the keys to the fields; `settings` must outlive the set.
OptionSet describe(RunSettings& settings);

// The YAML file that a word of the command line names, as FILE.yml or config=FILE; empty where it names none.
std::filesystem::path config_file(const std::string& word);

// Every file and folder that the run reads, or name that may be one, with its key.
void for_each_input(GenerateOptions& options,
                    const std::function<void(const char* key, std::filesystem::path& file)>& visit);

// Sets what a YAML file says. Relative paths in it that are read (model, weights, LoRA files, pictures, videos) are
// looked for beside that file, then from where the program was called. Throws Error with file and line.
void load_config(const std::filesystem::path& file, GenerateOptions& options, OptionSet& set);

// Puts what the files of prompt=@FILE and negative_prompt=@FILE hold (UTF-8, without line feeds at the end) in their
// place, and the numbers in those of cache_ratios and cache_coefficients; @@ stands for a prompt that begins with @.
void read_text_files(GenerateOptions& options);

// Several videos keep all weights that fit from one to the next unless the keys say otherwise.
void keep_weights_of_several(GenerateOptions& options, const OptionSet& set);

// The keys of another program that were set and change nothing here, in one line; empty where there were none.
std::string ignored_note(const OptionSet& set);

}  // namespace zoetrope::pipeline
