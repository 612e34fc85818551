// zoetrope synthesize: a checkpoint of random weights, as other programs read it.
#include "pipeline/model_files/synthesize.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/print.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

namespace zoetrope::cli {
namespace {

using pipeline::SynthesizeOptions;

std::string help() {
  SynthesizeOptions options;
  return fmt::format(
      "Keys, as key=value; the model may be given without its key:\n{}\n"
      "Example:\n  zoetrope synthesize wan2.1_t2v_1.3b out=wan-random layers=4\n",
      pipeline::describe_options(options).help());
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  SynthesizeOptions options;
  OptionSet set = pipeline::describe_options(options);
  for (const std::string& word : arguments) {
    if (word.find('=') == std::string::npos) set.set("model", word, "command line");
    else set.set_argument(word);
  }
  if (world != nullptr && world->rank() != 0) return 0;
  stop_at_safe_points();
  pipeline::SynthesizeCallbacks callbacks;
  callbacks.cancelled = interrupted;
  std::unique_ptr<BytesProgress> bar;
  callbacks.progress = [&](const std::string& component, int64_t done, int64_t total) {
    if (done == 0) bar = std::make_unique<BytesProgress>("Write " + component);
    bar->update(done, total);
  };
  const int64_t bytes = pipeline::synthesize(options, callbacks);
  bar.reset();
  print("Wrote {}: {:.3f} GB of weights\n", options.out, static_cast<double>(bytes) * 1e-9);
  return 0;
}

}  // namespace

const Command kSynthesize = {"synthesize",
                             "MODEL out=FOLDER key=value…",
                             "Write a checkpoint of random weights in the published layout",
                             help,
                             nullptr,
                             run};

}  // namespace zoetrope::cli
