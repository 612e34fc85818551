// zoetrope verify: whether a configuration computes what one rank and the float64 model do.
#include "pipeline/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/input_file.h"
#include "base/print.h"
#include "base/words.h"
#include "cli/command.h"
#include "cli/generate_words.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "pipeline/certificate.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/comm_timeout.h"
#include "pipeline/settings/run_settings.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;

struct VerifyWords {
  pipeline::VerifySettings settings;
  std::string certificate;
};

OptionSet describe(VerifyWords& words) {
  OptionSet set;
  set.text("certificate", words.certificate,
           "JSON file of what was found, written; one that is there is checked: its settings run again here")
      .text("reference", words.settings.reference,
            "folder of the files that the model's weights were made from; unset: the model itself")
      .number("minutes", words.settings.minutes, {0, 1e6},
              "minutes the verification may take, at a smaller size where needed; 0: no limit")
      .integer("rows", words.settings.rows, {0, 1'000'000'000},
               "tokens of each stage that are computed in float64, spread over the ranks; 0: all");
  return set;
}

std::string help() {
  VerifyWords words;
  return fmt::format(
      "Every key of `zoetrope generate`, and:\n{}\n"
      "Every value between the latents and the next is compared, layer by layer, with what one rank makes of the same\n"
      "values before it, and some tokens of as many layers as there is time for with the float64 model. The first "
      "value\nthat is outside of its bound is named with step, branch, rank and layer, and the exit code is 1.\n\n"
      "Example:\n  zoetrope verify MODEL prompt=\"a red cat\" ranks=4 certificate=cat.json\n"
      "  zoetrope verify MODEL certificate=cat.json      (elsewhere)\n",
      describe(words).help());
}

comm::RankOptions deadline(const std::vector<std::string>& arguments) {
  VerifyWords words;
  OptionSet own = describe(words);
  pipeline::RunSettings settings;
  OptionSet set = pipeline::describe(settings);
  parse_generate_words(take_own_words(arguments, own), settings.run, set);
  return pipeline::rank_options(settings.run);
}

// The text of the certificate, as rank 0 finds it; empty where there is none yet.
std::string certificate_text(const std::string& file, comm::Communicator* world) {
  std::string text, refusal;
  if (world == nullptr || world->rank() == 0) {
    try {
      if (!is_there(file)) check_writable(file);
      else if (text = read_file(file); text.empty()) fail("{} is empty", file);
    } catch (const std::exception& error) {
      refusal = error.what();
    }
  }
  if (world == nullptr) {
    if (!refusal.empty()) fail("certificate: {}", refusal);
    return text;
  }
  pipeline::fail_together(*world, refusal, "certificate");
  return pipeline::broadcast_text(*world, 0, std::move(text), "certificate");
}

// Settings of the certificate; the command line is above them.
void take_settings(const pipeline::Certificate& certificate, OptionSet& set) {
  const auto given = [&](const char* key) { return set.origin(key) == kCommandLine; };
  const auto settings = set.settings();
  const std::pair<std::string, std::string> by_budget("int8_layers", pipeline::kChosenLayers);
  const bool budget = given("budget"), blocks = given("int8_layers") && std::ranges::count(settings, by_budget) > 0;
  for (const auto& [key, value] : settings) {
    // What a budget on the command line chooses again.
    if ((budget && key == "cache_threshold") || ((budget || blocks) && key == "attention_int8_limit")) continue;
    const auto wanted = certificate.report.run.settings.find(key);
    if (wanted == certificate.report.run.settings.end() || wanted->second == value || set.origin(key) == kCommandLine)
      continue;
    const bool prose = key == "prompt" || key == "negative_prompt";
    set.set(key, wanted->second.empty() && !prose ? kDefaultValue : wanted->second, certificate.file.string());
  }
}

Callbacks make_callbacks(bool speaks) {
  Callbacks callbacks;
  callbacks.cancelled = interrupted;
  if (!speaks) return callbacks;
  callbacks.note = [](const std::string& line) { print_error("{}\n", line); };
  const auto steps = std::make_shared<std::unique_ptr<Progress>>();
  callbacks.step = [steps](int64_t done, int64_t total, double) {
    if (!*steps) *steps = std::make_unique<Progress>("Denoise", "step");
    (*steps)->update(done, total);
    if (done == total) steps->reset();
  };
  return callbacks;
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  VerifyWords words;
  OptionSet own = describe(words);
  pipeline::RunSettings settings;
  OptionSet set = pipeline::describe(settings);
  parse_generate_words(take_own_words(arguments, own), settings.run, set);
  pipeline::read_text_files(settings.run);
  stop_at_safe_points();
  const bool speaks = world == nullptr || world->rank() == 0;
  std::optional<pipeline::Certificate> certificate;
  const std::string text = words.certificate.empty() ? "" : certificate_text(words.certificate, world);
  if (!text.empty()) {
    certificate = pipeline::read_certificate(text, words.certificate);
    take_settings(*certificate, set);
    words.settings.as_asked = true;
    words.settings.begins = [&](const pipeline::RunIdentity& here, const std::string& weights) {
      require_same_run(*certificate, here, weights);
    };
  }
  pipeline::VerifyReport report;
  with_origins(set, [&] { report = pipeline::verify(settings.run, words.settings, world, make_callbacks(speaks)); });
  if (!speaks) return 0;
  print("{}", report.text(settings.summary == "full"));
  if (!certificate && !words.certificate.empty()) pipeline::write_certificate(report, words.certificate);
  if (report.outside > 0)
    fail("verify: {}; the first of {} outside of their bounds", report.first_outside, counted(report.outside, "value"));
  if (certificate) print("{}\n", pipeline::compare_with(*certificate, report));
  print("Every value is inside its bound\n");
  if (!certificate && !words.certificate.empty()) print("Wrote {}\n", printable(words.certificate));
  return 0;
}

}  // namespace

const Command kVerify = {"verify",
                         "CONFIG.yml|MODEL_DIR key=value…",
                         "Check what a run computes against one rank and float64",
                         help,
                         deadline,
                         run,
                         true};

}  // namespace zoetrope::cli
