// zoetrope bench: what the machine can do, and how much of it the engine reaches. Chooses the mode, parses its keys,
// prints the tables and writes JSON and page; the measuring is in bench/.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "base/error.h"
#include "bench/cases.h"
#include "bench/machine.h"
#include "cli/command.h"

namespace zoetrope::cli {
namespace {

using bench::Section;

struct Output {
  std::string json;
  void describe(OptionSet& options) { options.text("json", json, "write every figure to this file"); }
};

// One line on a terminal that the next one replaces; nothing elsewhere.
void show_progress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r\x1b[K{}", text);
  std::fflush(stderr);
}

struct Mode {
  const char* name;
  const char* summary;
  std::string (*help)();
  Section (*run)(const std::vector<std::string>& words, Output& output, int& wrong);
};

template <typename Settings>
void parse(Settings& settings, Output& output, const std::vector<std::string>& words) {
  OptionSet options = describe(settings);
  output.describe(options);
  for (const std::string& word : words) options.set_argument(word);
}

template <typename Settings>
std::string help_of() {
  Settings settings;
  Output output;
  OptionSet options = describe(settings);
  output.describe(options);
  return options.help();
}

Section run_peak(const std::vector<std::string>& words, Output& output, int&) {
  bench::PeakSettings settings;
  parse(settings, output, words);
  return bench_peak(settings, show_progress);
}

Section run_kernel(const std::vector<std::string>& words, Output& output, int& wrong) {
  bench::KernelSettings settings;
  parse(settings, output, words);
  return bench_kernel(settings, show_progress, wrong);
}

constexpr Mode kModes[] = {
    {"peak", "multiply-adds and bytes copied a second: the denominator of every fraction", help_of<bench::PeakSettings>,
     run_peak},
    {"kernel", "flash attention by itself, every implementation side by side", help_of<bench::KernelSettings>,
     run_kernel},
};

std::string mode_names() {
  std::string names;
  for (const Mode& mode : kModes) names += (names.empty() ? "" : ", ") + std::string(mode.name);
  return names;
}

void print(const bench::Report& report) {
  for (const auto& [name, value] : report.machine) fmt::print("{:<17} {}\n", name, value);
  for (const Section& section : report.sections) {
    fmt::print("\n{}\n\n{}", section.title, table_text(section.table));
  }
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  if (arguments.empty())
    fail("bench needs to know what to measure: zoetrope bench MODE, where MODE is one of {}", mode_names());
  const Mode* chosen = nullptr;
  for (const Mode& mode : kModes) {
    if (arguments[0] == mode.name) chosen = &mode;
  }
  if (chosen == nullptr) fail("there is no benchmark '{}'; there are: {}", arguments[0], mode_names());
  if (world != nullptr) fail("bench {} measures one process; start it without mpirun", chosen->name);
  Output output;
  int wrong = 0;
  bench::Report report{bench::describe_machine(), {}};
  report.sections.push_back(chosen->run({arguments.begin() + 1, arguments.end()}, output, wrong));
  show_progress("");
  print(report);
  if (!output.json.empty()) write_json(report, output.json);
  if (wrong > 0) fail("bench {}: {} of the results are wrong; see the lines marked WRONG", chosen->name, wrong);
  return 0;
}

std::string help() {
  std::string text;
  for (const Mode& mode : kModes) text += fmt::format("bench {}: {}\n{}\n", mode.name, mode.summary, mode.help());
  return text;
}

}  // namespace

const Command kBench = {
    "bench", "MODE [key=value …]", "Measure the machine and how much of it the engine reaches", help, nullptr, run};

}  // namespace zoetrope::cli
