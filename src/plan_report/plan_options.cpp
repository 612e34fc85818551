#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/options.h"
#include "base/run_files.h"
#include "base/words.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/planning/planned_run.h"
#include "pipeline/settings/run_settings.h"
#include "plan_report/plan_report.h"

namespace zoetrope::plan_report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kWhatIf = "what_if.";
constexpr std::string_view kPublished = "published=";
constexpr int kMostRanks = 4096;

// As given, before they are parsed.
struct Words {
  std::string ranks = "1";
  std::string objective = "latency";
  std::optional<int64_t> ranks_per_process;
};

OptionSet describe(PlanOptions& o, Words& w) {
  OptionSet set;
  set.text("hardware", o.hardware,
           "a name of configs/hardware/ or a profile's file; unset: this machine, as `zoetrope calibrate` or its first "
           "use measured it")
      .text("ranks", w.ranks,
            "number of devices to plan for, from 1 to 4096; several, as 8,16,64, give a scaling curve")
      .choice("objective", w.objective, {"latency", "throughput", "cost"},
              "what to optimize: the time of one video on all ranks, videos per hour, or the price per video")
      .number("price", o.price, {1e-9, 1e9},
              "price per device and hour, in any currency; unset: the profile's price_per_hour, if it has one")
      .integer("ranks_per_process", w.ranks_per_process, {1, kMostRanks},
               "ranks that share a process and its weights; unset: 1 on accelerators, all of a host on CPUs")
      .text("json", o.json, "file for all candidates")
      .text("report", o.report, "file for a page with the breakdown, the scaling curve, memory and the timeline")
      .text("trace", o.trace, "file for the predicted timeline of the best, to compare with a measured one")
      .integer("top", o.top, {1, 1000}, "lines per table")
      .flag("published", o.published, "print published runs and the model's predictions for them; takes no other key");
  return set;
}

std::vector<int> parse_ranks(const std::string& text) {
  std::vector<int> ranks;
  for (const std::string_view part : split(text, ',')) {
    const std::optional<int> count = to_number<int>(part);
    if (!count || *count < 1 || *count > kMostRanks) {
      fail("ranks={}: '{}' is not a number of ranks from 1 to {}; several are written as ranks=8,16,64", text, part,
           kMostRanks);
    }
    ranks.push_back(*count);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

planner::Objective parse_objective(const std::string& word) {
  for (const auto objective :
       {planner::Objective::kLatency, planner::Objective::kThroughput, planner::Objective::kCost})
    if (word == objective_name(objective)) return objective;
  ZT_CHECK(false, "objective {}", word);
  return {};
}

// The folder that a YAML file names, or the one of configs/ that it belongs to.
fs::path model_of(const std::string& model, const fs::path& yaml) {
  if (!model.empty()) return pipeline::model_or_config(model);
  fs::path folder = yaml;
  folder.replace_extension();
  if (pipeline::yaml_of_config(folder)) return folder;
  fail("{}: names no model; give it as model=FOLDER, or as a name of configs/", yaml.string());
}

// For an unknown key the nearest name of both sets is suggested.
void set_word(const std::string& word, OptionSet& own, OptionSet& run) {
  const std::string key = word.substr(0, word.find('='));
  if (own.knows(key)) return own.set_argument(word);
  static const std::vector<std::string> names{"hardware", "ranks",  "objective", "price", "ranks_per_process",
                                              "json",     "report", "trace",     "top",   "published",
                                              "what_if"};
  if (key == "summary") fail("summary: means nothing to plan, which starts no run; leave it out");
  const std::string near = nearest_name(key, names);
  if (!run.knows(key) && !near.empty()) fail("command line: unknown key '{}'; did you mean '{}'?", key, near);
  run.set_argument(word);
}

void check_files(const PlanOptions& o) {
  const std::string hardware = if_exists(o.hardware);
  check_files_differ({{"hardware", hardware}, {"json", o.json}, {"report", o.report}, {"trace", o.trace}});
  for (const auto& [key, file] :
       {std::pair{"json", &o.json}, std::pair{"report", &o.report}, std::pair{"trace", &o.trace}}) {
    const fs::path folder = fs::path(*file).parent_path();
    std::error_code ignored;
    if (!file->empty() && !folder.empty() && !fs::is_directory(folder, ignored))
      fail("{}={}: the folder {} does not exist", key, *file, folder.string());
    if (!file->empty() && fs::is_directory(*file, ignored)) fail("{}={} is a folder; name a file", key, *file);
  }
}

}  // namespace

PlanOptions parse_plan_options(const std::vector<std::string>& words) {
  struct RunKeys {
    pipeline::RunSettings settings;
    OptionSet set = pipeline::describe(settings);
  };
  const auto keys_of_run = std::make_shared<RunKeys>();
  pipeline::RunSettings& settings = keys_of_run->settings;
  OptionSet& run = keys_of_run->set;
  PlanOptions options;
  Words own_words;
  OptionSet own = describe(options, own_words);
  std::vector<std::string> models, keys;
  std::vector<fs::path> configs;
  for (const std::string& word : words) {
    const std::string key = word.substr(0, word.find('='));
    if (key == "what_if" || (key == word && word.rfind(kWhatIf, 0) == 0))
      fail("command line: '{}' is not of the form what_if.KEY=VALUE", word);
    if (const fs::path file = pipeline::config_file(word); !file.empty()) configs.push_back(file);
    else if (word.find('=') == std::string::npos) models.push_back(word);
    else if (word.rfind("model=", 0) == 0) models.push_back(word.substr(word.find('=') + 1));
    else keys.push_back(word);
  }
  for (const std::string& key : keys)
    if (key.rfind(kPublished, 0) == 0) own.set_argument(key);
  if (options.published) {
    if (words.size() > 1) fail("published=true takes no other key: the published runs determine models and hardware");
    return options;
  }
  if (models.size() > 1 || (models.empty() && configs.empty())) {
    fail("plan takes one model: zoetrope plan MODEL|CONFIG.yml hardware=PROFILE ranks=N [key=value…]");
  }
  for (const fs::path& file : configs) pipeline::load_config(file, settings.run, run);
  options.folder = models.empty() ? model_of(settings.run.model, configs.back()) : pipeline::model_or_config(models[0]);
  if (configs.empty())
    if (const auto yaml = pipeline::yaml_of_config(options.folder)) run.load_yaml(*yaml);
  for (const std::string& key : keys) {
    if (key.rfind(kWhatIf, 0) != 0) {
      set_word(key, own, run);
      continue;
    }
    const size_t equals = key.find('=');
    options.what_if.emplace_back(key.substr(kWhatIf.size(), equals - kWhatIf.size()), key.substr(equals + 1));
  }
  pipeline::refuse_keys_of_running(run, "plan");
  pipeline::read_text_files(settings.run);
  pipeline::keep_weights_of_several(settings.run, run);
  // A file says them as keys of a run.
  if (own.origin("ranks").empty() && settings.run.ranks) own_words.ranks = fmt::to_string(*settings.run.ranks);
  if (own.origin("hardware").empty()) options.hardware = settings.run.hardware;
  options.run = settings.run;
  options.ignored = pipeline::ignored_note(run);
  options.keys = std::shared_ptr<const OptionSet>(keys_of_run, &run);
  options.run.ranks.reset();
  options.run.hardware.clear();
  options.run.model = options.folder.string();
  options.ranks = parse_ranks(own_words.ranks);
  options.objective = parse_objective(own_words.objective);
  for (const auto& [key, value] : options.what_if) {
    if (options.price && key == "price_per_hour") fail("price and what_if.price_per_hour say the same; keep one");
    if (options.run.memory_limit && key == "memory")
      fail("memory_limit and what_if.memory both say how much memory there is; keep one");
  }
  if (own_words.ranks_per_process) options.ranks_per_process = static_cast<int>(*own_words.ranks_per_process);
  check_files(options);
  return options;
}

std::string plan_help() {
  PlanOptions options;
  Words words;
  return fmt::format(
      "MODEL is a folder that generate takes, one with a model's configs alone, or a name of configs/; of weights "
      "headers\nare read. CONFIG.yml,\nor config=FILE, is a file of generate, whose keys of running are not used. Keys "
      "of\ngenerate say what is planned (layers, height, width, num_frames, num_inference_steps, guidance_scale, "
      "dtype, vae_dtype,\nvae_convolution, vae_tiling, memory_limit in GB per process) and what is fixed (attention, "
      "ulysses_shards, ulysses_attention_chunks,\nring_direction, softmax, flash_block_sizes, kv_exchange_dtype, "
      "attention_dtype, shard_weights, data_parallelism,\ncontext_parallelism, tensor_parallelism, vae_parallel); so "
      "do LoRA files, the step cache, and pictures and\nvideos. Keys that change neither memory nor time are "
      "refused.\n\nKeys of plan:\n{}"
      "  what_if.KEY=VALUE   the profile with another figure: what_if.links.node.bandwidth=900, what_if.memory=x2\n\n"
      "Exit code 1 where nothing fits.\n\nExample:\n"
      "  zoetrope plan wan2.2_t2v_a14b hardware=h100_8 ranks=1,2,4,8 report=plan.html\n",
      describe(options, words).help());
}

}  // namespace zoetrope::plan_report
