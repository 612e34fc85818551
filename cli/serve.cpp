// zoetrope serve: videos by HTTP.
#include "server/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"
#include "base/print.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "pipeline/ranks/comm_timeout.h"
#include "pipeline/settings/run_settings.h"
#include "server/video_request.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;
using server::KeyUse;

struct Settings {
  server::ServeOptions serve;
  std::vector<std::string> models;         // folders and YAML files
  std::vector<std::string> of_all_models;  // key=value
};

Settings parse(const std::vector<std::string>& arguments) {
  Settings settings;
  OptionSet set = server::describe_serve_options(settings.serve);
  for (const std::string& word : arguments) {
    const size_t equals = word.find('=');
    if (!pipeline::config_file(word).empty() || (equals == std::string::npos && is_folder(word))) {
      settings.models.push_back(word);
    } else if (equals == std::string::npos) {
      fail("command line: '{}' is neither a YAML file, nor a checkpoint folder, nor key=value", word);
    } else if (set.knows(word.substr(0, equals))) {
      set.set_argument(word);
    } else {
      settings.of_all_models.push_back(word);
    }
  }
  return settings;
}

// The options of one model: its YAML file, then the command line. Requests change what is theirs.
server::ServedModel served_model(const std::string& word, const std::vector<std::string>& of_all_models,
                                 bool prints_notes) {
  server::ServedModel model;
  pipeline::GenerateOptions& options = model.options;
  OptionSet set = pipeline::describe_options(options);
  fs::path path = word;
  if (const fs::path file = pipeline::config_file(word); !file.empty()) {
    pipeline::load_config(file, options, set);
    model.name = file.stem().string();
  } else {
    set.set("model", word, kCommandLine);
    path = path.lexically_normal();
    model.name = without_last_slash(path).filename().string();
  }
  for (const std::string& argument : of_all_models) {
    const std::string key = argument.substr(0, argument.find('='));
    const KeyUse use = server::use_of_key(key);
    if (key == "model") fail("command line: {}: name models as words of their own", argument);
    if (key == "prompt" || use == KeyUse::kUpload || use == KeyUse::kNone)
      fail("command line: {}: is not for a server; {}", argument,
           use == KeyUse::kNone ? "one request makes one video" : "requests bring it");
    set.set_argument(argument);
  }
  const pipeline::GenerateOptions unset;
  options.prompt = options.prompts = options.dump = options.trace = "";
  pipeline::read_text_files(options);
  options.num_videos = options.batch_size = 1;
  options.output = unset.output;
  options.cache_compare = options.compare_one_rank = false;
  if (set.origin("keep_weights").empty()) options.keep_weights = KeepWeights::kAll;
  if (const std::string note = pipeline::ignored_note(set); prints_notes && !note.empty())
    print_error("Note: {}\n", note);
  return model;
}

std::string help() {
  server::ServeOptions options;
  return fmt::format(
      "Keys:\n{}\nAll keys of `zoetrope generate` but prompt, files and outputs are for every model: those of the "
      "model are fixed,\nthose of a video are what a request may leave out. keep_weights is `all` here unless it is "
      "set.\n\n"
      "Example:\n  zoetrope serve Wan2.1-T2V-1.3B-Diffusers port=8000 state=jobs num_inference_steps=30\n",
      server::describe_serve_options(options).help());
}

comm::RankOptions deadline(const std::vector<std::string>& arguments) {
  std::optional<comm::RankOptions> longest;
  const Settings settings = parse(arguments);
  for (const std::string& word : settings.models) {
    const comm::RankOptions one = pipeline::rank_options(served_model(word, settings.of_all_models, false).options);
    if (!longest) longest = one;
    longest->timeout_seconds = std::max(longest->timeout_seconds, one.timeout_seconds);
    longest->extends = longest->extends || one.extends;
  }
  return longest.value_or(pipeline::rank_options({}));
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  const bool prints_notes = world == nullptr || world->rank() == 0;
  const Settings settings = parse(arguments);
  std::vector<server::ServedModel> models;
  for (const std::string& word : settings.models)
    models.push_back(served_model(word, settings.of_all_models, prints_notes));
  stop_at_safe_points();
  server::serve(settings.serve, std::move(models), interrupted, world, deadline(arguments).timeout_seconds);
  return 0;
}

}  // namespace

const Command kServe = {
    "serve", "MODEL_DIR|CONFIG.yml… key=value…", "Turn prompts into videos by HTTP", help, deadline, run, true};

}  // namespace zoetrope::cli
