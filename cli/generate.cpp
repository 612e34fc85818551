// zoetrope generate: a prompt becomes a video.

#include "pipeline/generate.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <optional>

#include "base/error.h"
#include "base/input_file.h"
#include "base/print.h"
#include "base/words.h"
#include "cli/command.h"
#include "cli/generate_words.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "pipeline/outputs/preview_file.h"
#include "pipeline/ranks/comm_timeout.h"
#include "pipeline/records/series_journal.h"
#include "pipeline/settings/run_settings.h"

namespace zoetrope::cli {

namespace fs = std::filesystem;

void parse_generate_words(const std::vector<std::string>& words, pipeline::GenerateOptions& options, OptionSet& set) {
  for (const std::string& word : words) {
    if (const fs::path file = pipeline::config_file(word); !file.empty()) {
      pipeline::load_config(file, options, set);
    } else if (word.find('=') != std::string::npos) {
      set.set_argument(word);
    } else if (is_folder(word)) {
      set.set("model", word, kCommandLine);
    } else {
      fail("command line: '{}' is neither a YAML file, nor a checkpoint folder, nor key=value", word);
    }
  }
  if (!options.resume.empty()) pipeline::load_resumed_settings(options.resume, set);
  // Keys of ours say more, whatever their values are.
  for (const char* key : {"num_videos", "batch_size", "prompts"})
    if (!set.origin(key).empty()) options.videos_per_device = 0;
}

std::vector<std::string> take_own_words(const std::vector<std::string>& arguments, OptionSet& own) {
  std::vector<std::string> words;
  for (const std::string& word : arguments) {
    const std::string key = word.substr(0, word.find('='));
    if (key.size() < word.size() && own.knows(key)) own.set_argument(word);
    else words.push_back(word);
  }
  return words;
}

namespace {

std::string help() {
  pipeline::RunSettings settings;
  return fmt::format(
      "Keys, in a YAML file or as key=value (later wins; key=default takes back what was set before, an empty text a "
      "prompt):\n{}\n"
      "Example:\n  zoetrope generate configs/wan2.1_t2v_1.3b.yml model=Wan2.1-T2V-1.3B-Diffusers \\\n"
      "      prompt=\"a red cat on a market\" ranks=4 output=cat.mp4\n",
      pipeline::describe(settings).help());
}

// An animated picture that is replaced by each preview.
std::function<void(int64_t, const Tensor&)> preview_writer(const std::string& output) {
  return [file = pipeline::preview_file(output)](int64_t, const Tensor& frames) {
    try {
      pipeline::write_preview(frames, file);
    } catch (const Error& error) {  // no reason to lose the video
      print_error("Note: no preview: {}\n", printable(error.what()));
    }
  };
}

// What is said of a run's phases while it goes on.
class RunProgress {
 public:
  void load(const std::string& component, int64_t done, int64_t total) {
    if (!load_) load_.emplace("Load " + component);
    if (total > 0) load_->update(done, total);
    if (done > 0 && done == total) load_.reset();
  }

  void step(int64_t done, int64_t total, double seconds) {
    if (!denoise_) denoise_.emplace("Denoise", "step");
    if (decoding_) denoise_->restart(done - 1, seconds);
    decoding_ = false;
    if (seconds == 0 && done > 0) denoise_->restart(done);  // resumed: what comes before took another process' time
    denoise_->update(done, total);
    if (done == total) denoise_.reset();
  }

  void layer(int64_t done, int64_t total) {
    if (denoise_) denoise_->update_part("layer", done, total);
  }

  void frames(int64_t done, int64_t total) {
    // Of a batch, each video has its own frames.
    const bool begins = !decode_ || !decoding_ || done < decoded_;
    if (!decode_) decode_.emplace("Decode", "frame");
    if (begins) decode_->restart(done);
    decoding_ = true;
    decoded_ = done;
    decode_->update(done, total);
    if (done == total) decode_.reset();
  }

 private:
  std::optional<BytesProgress> load_;
  std::optional<Progress> denoise_, decode_;
  bool decoding_ = false;  // segments are decoded between steps: what one phase takes is not the other's
  int64_t decoded_ = 0;
};

// `progress` must outlive the callbacks.
Callbacks make_callbacks(bool speaks, RunProgress& progress) {
  Callbacks callbacks;
  callbacks.cancelled = interrupted;
  if (!speaks) return callbacks;
  callbacks.note = [](const std::string& line) { print_error("{}\n", line); };
  callbacks.load = std::bind_front(&RunProgress::load, &progress);
  callbacks.step = std::bind_front(&RunProgress::step, &progress);
  callbacks.layer = std::bind_front(&RunProgress::layer, &progress);
  callbacks.frames = std::bind_front(&RunProgress::frames, &progress);
  return callbacks;
}

comm::RankOptions deadline(const std::vector<std::string>& arguments) {
  pipeline::RunSettings settings;
  OptionSet set = pipeline::describe(settings);
  parse_generate_words(arguments, settings.run, set);
  return pipeline::rank_options(settings.run);
}

void print_summary(const pipeline::GenerateResult& result, const pipeline::RunSettings& settings) {
  if (settings.summary == "none") return;
  if (result.videos > 1) print("Video {} of {}: seed {}\n", result.number, result.videos, result.seed);
  print("{}", settings.summary == "full" ? result.timing : result.summary);
  if (settings.run.layers) print("With layers={} the video is not the model's\n", *settings.run.layers);
  if (result.one_rank_rel_l2) {
    print("Latents against one rank: relative L2 {:.3g}\n", *result.one_rank_rel_l2);
  }
  if (result.videos == 1) print("Seed {}\n", result.seed);
  print("Wrote {}{}{}\n", printable(result.written),
        result.replaced > 0 ? fmt::format(", which replaces {}", counted(result.replaced, "file")) : "",
        result.removed > 0 ? fmt::format(" and removes {}", counted(result.removed, "later frame")) : "");
  if (!result.grid.empty()) print("Wrote {}, which shows all {}\n", printable(result.grid), result.videos);
  if (result.videos > 1) flush_output();  // the next one takes its time
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  pipeline::RunSettings settings;
  OptionSet set = pipeline::describe(settings);
  parse_generate_words(arguments, settings.run, set);
  pipeline::read_text_files(settings.run);
  stop_at_safe_points();
  const bool speaks = world == nullptr || world->rank() == 0;
  RunProgress progress;
  Callbacks callbacks = make_callbacks(speaks, progress);
  if (speaks) callbacks.preview = preview_writer(settings.run.output);
  if (const std::string note = pipeline::ignored_note(set); speaks && !note.empty()) print_error("Note: {}\n", note);
  pipeline::keep_weights_of_several(settings.run, set);
  const pipeline::VideoDone done = [&](const pipeline::GenerateResult& result) { print_summary(result, settings); };
  with_origins(set, [&] {
    if (world == nullptr) pipeline::generate(settings.run, callbacks, done);
    else pipeline::generate(*world, settings.run, callbacks, done);
  });
  return 0;
}

}  // namespace

const Command kGenerate = {"generate", "CONFIG.yml|MODEL_DIR key=value…", "Turn a prompt into a video", help, deadline,
                           run};

}  // namespace zoetrope::cli
