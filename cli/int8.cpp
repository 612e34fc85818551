// zoetrope int8: measures what int8 costs each block of a model, for int8_layers=auto.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/print.h"
#include "bench/int8_errors.h"
#include "bench/report.h"
#include "cli/command.h"
#include "cli/drawings.h"
#include "cli/generate_words.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "pipeline/planning/plan.h"
#include "pipeline/planning/run_workload.h"
#include "pipeline/planning/weight_memory.h"
#include "pipeline/settings/run_settings.h"

namespace zoetrope::cli {
namespace {

constexpr const char* kPrompt = "A cat walks on the grass, realistic style.";

struct Int8Words {
  int64_t num_timesteps = 3;
  std::string svg;
};

OptionSet describe(Int8Words& words) {
  OptionSet set;
  set.integer("num_timesteps", words.num_timesteps, {1, 1000},
              "timesteps per expert at which errors are measured, at the ends of equal parts of what it denoises")
      .text("svg", words.svg,
            "write a plot of the blocks' errors to a file in this folder: int8-1.svg, of each expert");
  return set;
}

// The keys of `zoetrope generate` that a measurement takes.
constexpr const char* kTaken[] = {"model",
                                  "weights",
                                  "weights_seed",
                                  "layers",
                                  "transformer",
                                  "transformer_2",
                                  "text_encoder",
                                  "vae",
                                  "image_encoder",
                                  "tokenizer",
                                  "lora",
                                  "lora_high",
                                  "lora_low",
                                  "prompt",
                                  "negative_prompt",
                                  "guidance_scale",
                                  "guidance_scale_2",
                                  "max_sequence_length",
                                  "boundary_ratio",
                                  "text_encoder_dtype",
                                  "weight_memory",
                                  "weights_in_memory",
                                  "memory_limit",
                                  "threads",
                                  "int8_calibration",
                                  "dtype",
                                  "int8_layers",
                                  "budget",
                                  "recipe"};

void refuse_other_keys(const OptionSet& set) {
  for (const auto& [key, value] : set.settings()) {
    if (set.origin(key) != kCommandLine) continue;
    if (std::ranges::find(kTaken, key) == std::end(kTaken))
      fail("{}={}: means nothing to int8, which measures a model and makes no video; leave it out", key, value);
    // Runs that use the result have dtype=int8 and int8_layers=auto, so these are let through.
    if ((key == "dtype" && value != "int8") || (key == "int8_layers" && value != pipeline::kChosenLayers))
      fail("{}={}: int8 measures every block against bf16; leave it out", key, value);
  }
}

std::string help() {
  Int8Words words;
  return fmt::format(
      "The keys of `zoetrope generate` that say which model it is, prompts, guidance, threads, memory and "
      "int8_calibration (the\nfile of results), and:\n{}\n"
      "For each block of the transformer: how far int8 in it moves the guided velocity from that of bf16 (relative "
      "L2).\nThe last lines say the same of all blocks, of attention_dtype=int8, with smaller values of "
      "attention_int8_limit\n"
      "(≤), and of any small change, because bf16 then rounds otherwise. Within budget=, dtype=int8 int8_layers=auto\n"
      "chooses blocks by it, and attention_dtype=int8 its heads. Latents are those of runs with guidance_scale=, so "
      "give "
      "that of\nyours, or its recipe=; the table is for it, and what is stored serves any guidance. Errors depend on "
      "the prompt\n"
      "too, by a factor of three: give one like yours.\n"
      "LoRA files and their strengths belong to the model: give those that runs will have.\n\n"
      "Example:\n  zoetrope int8 Wan2.1-T2V-1.3B-Diffusers\n"
      "  zoetrope generate Wan2.1-T2V-1.3B-Diffusers prompt=\"a red cat\" dtype=int8 int8_layers=auto budget=0.06\n",
      describe(words).help());
}

using Row = std::vector<double>;  // of the table: an error for each timestep

Row row_of(const pipeline::Int8Errors& errors, double guidance, const auto& error_of) {
  Row row;
  for (const pipeline::Int8Errors::At& at : errors.at) row.push_back(at.relative(error_of(at), guidance));
  return row;
}

std::vector<Row> block_rows(const pipeline::Int8Errors& errors, double guidance) {
  std::vector<Row> rows;
  for (size_t block = 0; block < static_cast<size_t>(errors.block_count()); ++block)
    rows.push_back(row_of(errors, guidance, [&](const auto& at) { return at.blocks[block]; }));
  return rows;
}

bench::BarPlot error_plot(const std::vector<Row>& blocks, const char* expert) {
  bench::BarPlot plot{.title = fmt::format("Error of the velocity from one block of the {} in int8", expert),
                      .y_label = "relative L2, percent",
                      .groups = {},
                      .series = {{"the most of all timesteps", {}}}};
  for (size_t block = 0; block < blocks.size(); ++block) {
    plot.groups.push_back(fmt::to_string(block));
    plot.series[0].values.push_back(100 * std::ranges::max(blocks[block]));
  }
  return plot;
}

std::string row_text(std::string_view name, const Row& row) {
  std::string text = fmt::format("{:>10}", name);
  for (const double error : row) text += fmt::format(" {:>8.3f}", 100 * error);
  return text;
}

// Equal parts of the way from any small change to all blocks.
std::vector<double> budgets_between(const Row& rounding, const Row& all) {
  constexpr int kParts = 5;
  const double least = std::ranges::max(rounding), most = std::max(std::ranges::max(all), least);
  std::vector<double> budgets;
  for (int part = 1; part <= kParts; ++part)
    budgets.push_back(std::ceil(1e4 * (least + (most - least) * part / kParts)) / 1e4);
  return budgets;
}

// `budget`: for which the blocks that fit are shown; unset: some.
void print_errors(const pipeline::Int8Errors& errors, double guidance, std::optional<double> budget) {
  print("{}: relative L2 of the velocity against bf16, in percent, {}\n{:>10}", errors.name,
        pipeline::guidance_text(guidance), "block");
  for (const auto& at : errors.at) print(" {:>8}", fmt::format("t={:.0f}", at.timestep));
  print("\n");
  const std::vector<Row> blocks = block_rows(errors, guidance);
  double most = 0;
  for (const Row& row : blocks) most = std::max(most, std::ranges::max(row));
  constexpr double kColumns = 40;
  for (size_t block = 0; block < blocks.size(); ++block) {
    const double part = most > 0 ? std::ranges::max(blocks[block]) / most : 0;
    print("{}  {}\n", row_text(fmt::to_string(block), blocks[block]),
          std::string(static_cast<size_t>(std::lround(kColumns * part)), '#'));
  }
  const Row all = row_of(errors, guidance, [](const auto& at) { return at.all; });
  print("{}\n", row_text("all", all));
  for (size_t limit = 0; limit < errors.attention_limits.size(); ++limit) {
    print("{}\n", row_text(limit == 0 ? "attention" : fmt::format("≤ {:g} %", 100 * errors.attention_limits[limit]),
                           row_of(errors, guidance, [&](const auto& at) { return at.attention[limit]; })));
  }
  const Row rounding = row_of(errors, guidance, [](const auto& at) { return at.rounding; });
  print("{}\n{:>10}  blocks that fit\n", row_text("rounding", rounding), "budget");
  const auto print_choice = [&](const std::string& name, const pipeline::Int8Choice& choice) {
    print("{:>10}  {:>2} of {}{}\n", name, choice.blocks.size(), blocks.size(),
          choice.blocks.empty() ? "" : fmt::format(": {}", pipeline::block_ranges(choice.blocks)));
  };
  constexpr double kUnguided = 1;
  if (!budget) print_choice("unset", pipeline::choose_int8_blocks(errors, kUnguided, pipeline::kDefaultInt8Budget));
  for (const double one : budget ? std::vector{*budget} : budgets_between(rounding, all))
    print_choice(fmt::to_string(one), pipeline::choose_int8_blocks(errors, guidance, one));
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  if (world != nullptr) fail("int8 measures in one process; start it without mpirun");
  Int8Words words;
  OptionSet own = describe(words);
  pipeline::RunSettings settings;
  settings.run.prompt = kPrompt;
  OptionSet set = pipeline::describe(settings);
  parse_generate_words(take_own_words(arguments, own), settings.run, set);
  refuse_other_keys(set);
  pipeline::read_text_files(settings.run);
  const auto file = pipeline::Int8Calibration::named(settings.run.int8_calibration);
  const std::optional<double> budget = settings.run.budget;
  // What runs will have, and the measurement decides.
  const ModelOptions defaults;
  settings.run.dtype = DType::kBF16;
  settings.run.int8_layers = defaults.int8_layers;
  settings.run.int8_calibration.clear();
  settings.run.budget.reset();
  pipeline::check_model_options(settings.run);
  const auto model = pipeline::ModelFolder::open(settings.run);
  pipeline::check_weight_memory({settings.run, pipeline::model_configs(model)});
  if (model.experts.size() == 1) pipeline::refuse_keys_of_two_experts(settings.run);
  file.require_writable();
  const Drawings drawings(words.svg, kInt8.name);
  stop_at_safe_points();
  bench::Int8ErrorSettings measured{settings.run, words.num_timesteps, {}, {}, {}};
  Progress progress("Measure", "forward");
  measured.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  bench::Report report;
  bench::Section& section = report.sections.emplace_back();
  section.name = kInt8.name;
  measured.poll = [&] {
    if (!interrupted()) return;
    if (section.bar_plots.empty()) fail("interrupted; nothing is stored");
    fail("interrupted; the errors of the {} are stored, and no others", pipeline::expert_name(0));
  };
  measured.found = [&](const pipeline::Int8Errors& errors) {
    file.remember(errors);
    const size_t expert = section.bar_plots.size();
    const double guidance = pipeline::guidance_of(settings.run)[expert];
    print_errors(errors, guidance, budget);
    section.bar_plots.push_back(
        error_plot(block_rows(errors, guidance), pipeline::expert_name(static_cast<int>(expert))));
  };
  bench::measure_int8_errors(model, measured);
  drawings.write(report);
  print("stored in {}\n", file.file().string());
  return 0;
}

}  // namespace

const Command kInt8 = {"int8", "MODEL key=value…", "Measure what int8 costs each block of a model", help, nullptr, run,
                       true};

}  // namespace zoetrope::cli
