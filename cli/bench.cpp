// zoetrope bench: the limits of the machine, and how close the engine comes. Selects the mode, parses its keys, prints
// the tables and writes JSON and page; bench/ does the measuring.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/print.h"
#include "base/run_files.h"
#include "bench/cases.h"
#include "bench/machine.h"
#include "bench/page.h"
#include "cli/command.h"
#include "cli/drawings.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

// Every mode takes these.
struct Output {
  std::string json, html, svg;
  void describe(OptionSet& options) {
    options.text("json", json, "write every figure to this file")
        .text("html", html, "write a page with plots to this file; it needs no other file and no network")
        .text("svg", svg, "write each plot of the page to a file in this folder: MODE-1.svg, MODE-2.svg, …");
  }
};

// The settings of all modes; defaults until keys set them.
struct Settings {
  bench::PeakSettings peak;
  bench::KernelSettings kernel;
  bench::ProductSettings product;
  bench::NumericsSettings numerics;
  bench::CommSettings comm;
  bench::AttentionSettings attention;
  bench::ModelSettings model;
  bench::VaeSettings vae;
  bench::TextSettings text;
  bench::LoadSettings load;
  bench::SharedSettings shared;
  bench::PipelineSettings pipeline;
  Output output;
};

struct Run {
  const Settings& settings;
  comm::Communicator* world;
  bench::Outcome outcome = {};
};

struct Mode {
  const char* name;
  const char* summary;
  bool on_ranks;  // of an MPI job
  bool in_all;    // not models of published sizes: they take gigabytes
  OptionSet (*describe)(Settings&);
  std::vector<bench::Section> (*run)(Run&);
};

std::vector<bench::Section> one(bench::Section section) { return {std::move(section)}; }

constexpr Mode kModes[] = {
    {"peak", "multiply-adds and bytes copied per second: the denominator of every fraction", false, true,
     [](Settings& s) { return describe(s.peak); },
     [](Run& run) { return one(bench_peak(run.settings.peak, show_progress)); }},
    {"kernel", "flash attention alone, every implementation", false, true,
     [](Settings& s) { return describe(s.kernel); },
     [](Run& run) { return one(bench_kernel(run.settings.kernel, show_progress, run.outcome)); }},
    {"product", "matrix multiplications of layers, every dtype", false, true,
     [](Settings& s) { return describe(s.product); },
     [](Run& run) { return one(bench_product(run.settings.product, show_progress, run.outcome)); }},
    {"numerics", "errors of every implementation and softmax against the float64 definition", false, true,
     [](Settings& s) { return describe(s.numerics); },
     [](Run& run) { return one(bench_numerics(run.settings.numerics, show_progress, run.outcome)); }},
    {"comm", "all-to-all and ring bandwidth against message size; under mpirun over its ranks", true, true,
     [](Settings& s) { return describe(s.comm); },
     [](Run& run) { return one(bench_comm(run.settings.comm, run.world, show_progress)); }},
    {"attention", "every strategy at several batch sizes; under mpirun over its ranks", true, true,
     [](Settings& s) { return describe(s.attention); },
     [](Run& run) { return one(bench_attention(run.settings.attention, run.world, show_progress, run.outcome)); }},
    {"model", "a forward of a published transformer, with random weights or from a checkpoint", false, false,
     [](Settings& s) { return describe(s.model); },
     [](Run& run) { return bench_model(run.settings.model, show_progress, run.outcome); }},
    {"vae", "decoding of latents by a published VAE", false, false, [](Settings& s) { return describe(s.vae); },
     [](Run& run) { return bench_vae(run.settings.vae, show_progress, run.outcome); }},
    {"text", "a prompt through a published text encoder", false, false, [](Settings& s) { return describe(s.text); },
     [](Run& run) { return bench_text(run.settings.text, show_progress, run.outcome); }},
    {"load", "loading a transformer, up to the end of its first forward", false, false,
     [](Settings& s) { return describe(s.load); },
     [](Run& run) { return bench_load(run.settings.load, show_progress, run.outcome); }},
    {"shared", "a forward and a decoding next to busy processes, compared with a fair share of the cores", false, false,
     [](Settings& s) { return describe(s.shared); },
     [](Run& run) { return bench_shared(run.settings.shared, show_progress, run.outcome); }},
    {"pipeline",
     "whole runs, prompt to frames, with every strategy at several batch sizes; under mpirun over its ranks", true,
     false, [](Settings& s) { return describe(s.pipeline); },
     [](Run& run) {
       return bench_pipeline(run.settings.pipeline, run.world, show_progress, interrupted, run.outcome);
     }},
};
constexpr const char* kAll = "all";

std::string mode_names() {
  std::string names;
  for (const Mode& mode : kModes) names += std::string(mode.name) + ", ";
  return names + kAll;
}

// `all` measures fewer shapes of the kernel than the mode alone: a quarter of an hour instead of an hour.
void set_defaults_of_all(Settings& settings) { settings.kernel.shapes = "lengths,head_dims,primes,cross,masks"; }

// Keys of `all` begin with the mode: kernel.shapes=small.
void parse_all(Settings& settings, const Words& words) {
  set_defaults_of_all(settings);
  OptionSet output;
  settings.output.describe(output);
  for (const std::string& word : words) {
    const size_t dot = word.find('.');
    const Mode* owner = nullptr;
    for (const Mode& mode : kModes) {
      if (mode.in_all && dot < word.find('=') && word.substr(0, dot) == mode.name) owner = &mode;
    }
    if (owner != nullptr) {
      owner->describe(settings).set_argument(std::string_view(word).substr(dot + 1));
    } else if (dot < word.find('=')) {
      fail("bench all: there is no benchmark '{}' for '{}'; there are: {}", word.substr(0, dot), word, mode_names());
    } else {
      output.set_argument(word);
    }
  }
}

void parse(const Mode& mode, Settings& settings, const Words& words) {
  OptionSet options = mode.describe(settings);
  settings.output.describe(options);
  for (const std::string& word : words) options.set_argument(word);
}

void print_report(const bench::Report& report) {
  for (const auto& [name, value] : report.machine) print("{:<17} {}\n", name, value);
  for (const bench::Section& section : report.sections) {
    print("\n{}\n\n{}", section.title, table_text(section.table));
  }
}

// Opened before anything is measured, so that a missing folder is an error early.
void open(std::optional<AtomicFile>& file, const std::string& path) {
  if (!path.empty()) file.emplace(path);
}

void write(std::optional<AtomicFile>& file, const std::string& text) {
  if (!file) return;
  file->write(text.data(), text.size());
  file->commit();
}

std::vector<const Mode*> choose(const Words& arguments, Settings& settings, bool on_ranks) {
  if (arguments.empty()) {
    fail("bench needs to know what to measure: zoetrope bench MODE, where MODE is one of {}", mode_names());
  }
  const Words words(arguments.begin() + 1, arguments.end());
  std::vector<const Mode*> chosen;
  for (const Mode& mode : kModes) {
    if (arguments[0] == mode.name || (arguments[0] == kAll && mode.in_all)) chosen.push_back(&mode);
  }
  if (chosen.empty()) fail("there is no benchmark '{}'; there are: {}", arguments[0], mode_names());
  for (const Mode* mode : chosen) {
    if (on_ranks && !mode->on_ranks) fail("bench {} measures one process; start it without mpirun", arguments[0]);
  }
  if (arguments[0] == kAll) {
    parse_all(settings, words);
  } else {
    parse(*chosen[0], settings, words);
  }
  return chosen;
}

int run(const Words& arguments, comm::Communicator* world) {
  stop_at_safe_points();
  Settings settings;
  const std::vector<const Mode*> chosen = choose(arguments, settings, world != nullptr);
  const bool leads = world == nullptr || world->rank() == 0;
  check_files_differ({{"json", settings.output.json}, {"html", settings.output.html}});
  std::optional<AtomicFile> json, html;
  if (leads) {
    open(json, settings.output.json);
    open(html, settings.output.html);
  }
  const Drawings drawings(leads ? settings.output.svg : "", chosen[0]->name);
  bench::Report report;
  report.machine = bench::describe_machine();
  Run state{settings, world};
  for (const Mode* mode : chosen) {
    for (bench::Section& section : mode->run(state)) report.sections.push_back(std::move(section));
  }
  if (leads) {
    show_progress("");
    print_report(report);
    write(json, report_json(report));
    write(html, report_page(report));
    drawings.write(report);
  }
  const bench::Outcome& outcome = state.outcome;
  // mpirun ends the job when a rank fails: not before rank 0 has written.
  if (world != nullptr) world->barrier();
  if (outcome.wrong > 0) fail("bench: {} of the results are wrong; see the lines marked WRONG", outcome.wrong);
  if (outcome.unmeasured == 1) fail("bench: a case could not be measured: {}", outcome.reason);
  if (outcome.unmeasured > 1) {
    fail("bench: {} cases could not be measured, the first because: {}", outcome.unmeasured, outcome.reason);
  }
  return 0;
}

comm::RankOptions deadline(const Words& arguments) {
  if (arguments.empty()) return {.timeout_seconds = bench::kCommTimeout};
  Settings settings;
  choose(arguments, settings, false);
  if (arguments[0] == "pipeline") return {.timeout_seconds = settings.pipeline.comm_timeout};
  return {.timeout_seconds = arguments[0] == "comm" ? settings.comm.comm_timeout : settings.attention.comm_timeout};
}

std::string help() {
  std::string text;
  for (const Mode& mode : kModes) {
    Settings settings;
    text += fmt::format("bench {}: {}\n{}\n", mode.name, mode.summary, mode.describe(settings).help());
  }
  Output output;
  OptionSet common;
  output.describe(common);
  return text + fmt::format(
                    "bench all: every mode except model, vae, text, load, shared and pipeline in one report; keys are "
                    "prefixed with the mode (kernel.shapes=small)\n\nEvery mode takes:\n{}",
                    common.help());
}

}  // namespace

const Command kBench = {
    "bench", "MODE [key=value …]", "Measure the machine's limits and how close the engine comes", help, deadline, run};

}  // namespace zoetrope::cli
