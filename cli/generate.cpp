// zoetrope generate: a prompt becomes a video.
#include "zoetrope/generate.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/print.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "pipeline/generate_options.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;

bool is_yaml(const fs::path& path) { return path.extension() == ".yml" || path.extension() == ".yaml"; }

// A relative model folder in a YAML file is looked for from where the program was called, then from beside the file.
void resolve_model(GenerateOptions& options, const fs::path& yaml) {
  const fs::path model = options.model;
  if (model.empty() || model.is_absolute() || fs::exists(model)) return;
  const fs::path beside = yaml.parent_path() / model;
  if (fs::exists(beside)) options.model = beside.lexically_normal().string();
}

void parse(const std::vector<std::string>& arguments, GenerateOptions& options, OptionSet& set) {
  for (const std::string& word : arguments) {
    if (word.find('=') != std::string::npos) {
      set.set_argument(word);
    } else if (is_yaml(word)) {
      set.load_yaml(word);
      resolve_model(options, word);
    } else if (fs::is_directory(word)) {
      set.set("model", word, kCommandLine);
    } else {
      fail("command line: '{}' is neither a YAML file, nor a checkpoint folder, nor key=value", word);
    }
  }
}

std::string help() {
  GenerateOptions options;
  return fmt::format(
      "Keys, in a YAML file or as key=value (later wins; key=default takes back what was set before):\n{}\n"
      "Example:\n  zoetrope generate configs/wan2.1_t2v_1.3b.yml model=Wan2.1-T2V-1.3B-Diffusers \\\n"
      "      prompt=\"a red cat on a market\" ranks=4 output=cat.mp4\n",
      pipeline::describe_options(options).help());
}

GenerateCallbacks make_callbacks(bool speaks) {
  GenerateCallbacks callbacks;
  callbacks.cancelled = interrupted;
  if (!speaks) return callbacks;
  callbacks.note = [](const std::string& line) { print_error("{}\n", line); };
  const auto read = std::make_shared<std::unique_ptr<BytesProgress>>();
  callbacks.load = [read](const std::string& component, int64_t done, int64_t total) {
    if (!*read) *read = std::make_unique<BytesProgress>("Load " + component);
    if (total > 0) (*read)->update(done, total);
    if (done > 0 && done == total) read->reset();
  };
  const auto denoise = std::make_shared<std::unique_ptr<Progress>>();
  callbacks.step = [denoise](int64_t done, int64_t total, double) {
    if (!*denoise) *denoise = std::make_unique<Progress>("Denoise", "step");
    (*denoise)->update(done, total);
    if (done == total) denoise->reset();
  };
  const auto decode = std::make_shared<std::unique_ptr<Progress>>();
  callbacks.frames = [decode](int64_t done, int64_t total) {
    if (!*decode) *decode = std::make_unique<Progress>("Decode", "frame");
    (*decode)->update(done, total);
    if (done == total) decode->reset();
  };
  return callbacks;
}

double timeout(const std::vector<std::string>& arguments) {
  GenerateOptions options;
  OptionSet set = pipeline::describe_options(options);
  try {
    parse(arguments, options, set);
  } catch (const std::exception&) {
    return GenerateOptions().comm_timeout;
  }
  return options.comm_timeout;
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  GenerateOptions options;
  OptionSet set = pipeline::describe_options(options);
  parse(arguments, options, set);
  stop_at_safe_points();
  const bool speaks = world == nullptr || world->rank() == 0;
  const GenerateCallbacks callbacks = make_callbacks(speaks);
  const GenerateResult result = with_origins(set, [&] {
    if (world == nullptr) return generate(options, callbacks);
    return TextToVideo::open(options)->run(*world, callbacks, TextToVideo::Stop::kAfterOutput);
  });
  if (!speaks) return 0;
  print("{}", result.timing);
  if (result.one_rank_rel_l2) {
    print("Latents against one rank: relative L2 {:.3g}\n", *result.one_rank_rel_l2);
  }
  print("Wrote {}\n", printable(result.written));
  return 0;
}

}  // namespace

const Command kGenerate = {"generate", "CONFIG.yml|MODEL_DIR key=value…", "Turn a prompt into a video", help, timeout,
                           run};

}  // namespace zoetrope::cli
