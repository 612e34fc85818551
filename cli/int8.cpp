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
#include "kernels/gemm/packed.h"
#include "pipeline/run_settings.h"

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
              "timesteps per expert at which errors are measured, spread over those it denoises")
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
                                  "budget"};

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
      "The keys of `zoetrope generate` that say which model it is, prompt, threads, memory and int8_calibration (the "
      "file of\nresults), and:\n{}\n"
      "For each block of the transformer: how far int8 in it moves the velocity from that of bf16 (relative L2). The "
      "last\nlines say the same of all blocks, of attention_dtype=int8, with smaller values of attention_int8_limit "
      "(≤), and of any small\nchange, because bf16 then rounds otherwise. Within budget=, dtype=int8 "
      "int8_layers=auto chooses blocks by it, and\nattention_dtype=int8 its heads.\n"
      "LoRA files and their strengths belong to the model: give those that runs will have.\n\n"
      "Example:\n  zoetrope int8 Wan2.1-T2V-1.3B-Diffusers\n"
      "  zoetrope generate Wan2.1-T2V-1.3B-Diffusers prompt=\"a red cat\" dtype=int8 int8_layers=auto budget=0.015\n",
      describe(words).help());
}

double largest(const pipeline::Int8Errors& errors, size_t block) {
  double error = 0;
  for (const pipeline::Int8Errors::At& at : errors.at) error = std::max(error, at.blocks[block]);
  return error;
}

bench::BarPlot error_plot(const pipeline::Int8Errors& errors, const char* expert) {
  bench::BarPlot plot{.title = fmt::format("Error of the velocity from one block of the {} in int8", expert),
                      .y_label = "relative L2, percent",
                      .groups = {},
                      .series = {{"the most of all timesteps", {}}}};
  for (size_t block = 0; block < static_cast<size_t>(errors.block_count()); ++block) {
    plot.groups.push_back(fmt::to_string(block));
    plot.series[0].values.push_back(100 * largest(errors, block));
  }
  return plot;
}

// `budgets`: for which the blocks that fit are shown.
void print_errors(const pipeline::Int8Errors& errors, const std::vector<double>& budgets) {
  print("{}: relative L2 of the velocity against bf16, in percent\n{:>10}", errors.name, "block");
  for (const auto& at : errors.at) print(" {:>8}", fmt::format("t={:.0f}", at.timestep));
  print("\n");
  double most = 0;
  const auto blocks = static_cast<size_t>(errors.block_count());
  for (size_t block = 0; block < blocks; ++block) most = std::max(most, largest(errors, block));
  constexpr double kColumns = 40;
  for (size_t block = 0; block < blocks; ++block) {
    print("{:>10}", block);
    for (const auto& at : errors.at) print(" {:>8.3f}", 100 * at.blocks[block]);
    const auto bar = most > 0 ? static_cast<size_t>(std::lround(kColumns * largest(errors, block) / most)) : 0;
    print("  {}\n", std::string(bar, '#'));
  }
  print("{:>10}", "all");
  for (const auto& at : errors.at) print(" {:>8.3f}", 100 * at.all);
  for (size_t limit = 0; limit < errors.attention_limits.size(); ++limit) {
    print("\n{:>10}", limit == 0 ? "attention" : fmt::format("≤ {:g} %", 100 * errors.attention_limits[limit]));
    for (const auto& at : errors.at) print(" {:>8.3f}", 100 * at.attention[limit]);
  }
  print("\n{:>10}", "rounding");
  for (const auto& at : errors.at) print(" {:>8.3f}", 100 * at.rounding);
  print("\n{:>10}  blocks that fit\n", "budget");
  for (const double budget : budgets) {
    const pipeline::Int8Choice choice = pipeline::choose_int8_blocks(errors, budget);
    print("{:>10}  {:>2} of {}{}\n", budget, choice.blocks.size(), blocks,
          choice.blocks.empty() ? "" : fmt::format(": {}", pipeline::block_ranges(choice.blocks)));
  }
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
  pipeline::read_prompt_files(settings.run);
  if (kernels::packed_layouts(DType::kI8).empty())
    fail("int8: this CPU has no int8 dot products (AVX512-VNNI or AVX-VNNI), so nothing is to be measured");
  const pipeline::Int8Calibration file(settings.run.int8_calibration.empty()
                                           ? pipeline::Int8Calibration::default_file()
                                           : std::filesystem::path(settings.run.int8_calibration));
  const std::optional<double> budget = settings.run.budget;
  const std::vector<double> budgets =
      budget ? std::vector<double>{*budget} : std::vector<double>{0.005, 0.01, 0.015, 0.02, 0.03};
  // What runs will have, and the measurement decides.
  const ModelOptions defaults;
  settings.run.dtype = DType::kBF16;
  settings.run.int8_layers = defaults.int8_layers;
  settings.run.int8_calibration.clear();
  settings.run.budget.reset();
  pipeline::check_model_options(settings.run);
  const auto model = pipeline::ModelFolder::open(settings.run);
  file.require_writable();
  const Drawings drawings(words.svg, kInt8.name);
  stop_at_safe_points();
  bench::Int8ErrorSettings measured{settings.run, words.num_timesteps, {}, {}, {}};
  measured.poll = [] {
    if (interrupted()) fail("interrupted; what was measured is not stored");
  };
  Progress progress("Measure", "forward");
  measured.progress = [&](int64_t done, int64_t total) { progress.update(done, total); };
  bench::Report report;
  bench::Section& section = report.sections.emplace_back();
  section.name = kInt8.name;
  measured.found = [&](const pipeline::Int8Errors& errors) {
    file.remember(errors);
    print_errors(errors, budgets);
    section.bar_plots.push_back(error_plot(errors, pipeline::expert_name(static_cast<int>(section.bar_plots.size()))));
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
