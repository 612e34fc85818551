// golden_test [--self-test] [DIR]: holds this build against recorded runs of the reference implementation. Runs every
// case it finds under DIR (default: the project's own copy), one line a tensor:
//
//   PASS|FAIL|SKIP case tensor error tolerance reason
//
// --self-test moves every checked tensor by ten tolerances and passes where the check fails.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/project_folders.h"
#include "report.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;

bool begins(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

void run_case(Report& report, const fs::path& root, const fs::path& folder) {
  const std::string name = fs::relative(folder, root).generic_string();
  report.begin_case(name);
  if (begins(name, "weights/") || root.filename() == "weights") return run_weights_case(report, root, folder);
  if (begins(name, "pipelines/")) return run_pipeline_case(report, folder);
  if (begins(name, "transformer")) return run_transformer_case(report, root, folder);
  if (begins(name, "vae")) return run_vae_case(report, root, folder);
  if (begins(name, "loras")) return run_lora_case(report, root, folder);
  if (begins(name, "umt5")) return run_umt5_case(report, root, folder);
  if (begins(name, "schedulers")) return run_scheduler_case(report, folder);
  if (begins(name, "rng")) return run_rng_case(report, folder);
  report.fail("*", "no test knows this kind of case");
}

int run(const std::vector<std::string>& arguments) {
  Report::Mode mode = Report::Mode::kCheck;
  fs::path root = kGoldenFolder;
  for (const std::string& word : arguments) {
    if (word == "--self-test") {
      mode = Report::Mode::kSelfTest;
    } else {
      root = word;
    }
  }
  if (!fs::is_directory(root)) fail("{}: is not a folder; name the folder of a recorded data set", root.string());
  std::vector<fs::path> folders;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().filename() == "case.json") folders.push_back(entry.path().parent_path());
  }
  std::sort(folders.begin(), folders.end());
  Report report(mode);
  for (const fs::path& folder : folders) {
    try {
      run_case(report, root, folder);
    } catch (const std::exception& error) {
      report.fail("*", error.what());
    }
  }
  return report.finish();
}

}  // namespace
}  // namespace zoetrope::golden

int main(int argc, char** argv) {
  try {
    return zoetrope::golden::run({argv + 1, argv + argc});
  } catch (const zoetrope::Error& error) {
    fmt::print(stderr, "golden_test: {}\n", error.what());
    return 1;
  }
}
