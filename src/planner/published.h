// What others have published about runs of Wan 2.2 A14B (720 x 1280, 81 frames, bf16), and how far the simulator is
// from it on the shipped profiles. The same code makes the table of docs/planner.md, the one that `zoetrope plan`
// prints, and the tests. Measures nothing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "planner/simulator.h"

namespace zoetrope::planner {

enum class PublishedTime : uint8_t {
  kStep,     // one denoising step
  kDenoise,  // all steps
  kRun,      // text encoder, all steps, VAE; no loading
};

struct PublishedRow {
  std::string machine;  // of configs/hardware
  std::string name;
  Configuration configuration;
  int branches = 1;  // forwards a step: 2 with guidance
  int vae_element_bytes = 2;
  PublishedTime time = PublishedTime::kStep;
  double seconds = 0;
  std::string source;
};

// Row by row, machines together.
std::vector<PublishedRow> published_rows();

// The operations of that row's run.
Work published_work(const PublishedRow& row);
// What the model says for PublishedRow::seconds.
double predicted_seconds(const PublishedRow& row, const HardwareProfile& hardware);

// What is fitted to published runs: four constants where a machine's runs tell them apart (TPU v7x), elsewhere one
// efficiency of all matrix multiplications and attention.
enum class Fitted : uint8_t { kConstants, kEfficiency };
Fitted fitted(const std::string& machine);
// The profile with these set to what fits `rows` of its machine best: least squares of relative errors.
HardwareProfile fit(const HardwareProfile& hardware, const std::vector<PublishedRow>& rows);

struct PublishedResult {
  PublishedRow row;
  double predicted = 0;  // kConstants: with the profile as shipped; kEfficiency: with one fitted to all rows
  double left_out = 0;   // fitted to all rows of the machine but this
  double error() const { return predicted / row.seconds - 1; }
  double left_out_error() const { return left_out / row.seconds - 1; }
};

// `folder`: configs/hardware. Throws Error where a profile cannot be read.
std::vector<PublishedResult> compare_published(const std::filesystem::path& folder);

// In Markdown.
std::string published_table(const std::vector<PublishedResult>& results);

}  // namespace zoetrope::planner
