// How a run is noted and goes on: which settings decide a video, and what ranks must know before they begin.
#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "zoetrope/version.h"

#include "attention/strategy_options.h"
#include "base/error.h"
#include "pipeline/agreement.h"
#include "pipeline/fingerprint.h"
#include "pipeline/generate_options.h"
#include "pipeline/journal.h"
#include "pipeline/run.h"
#include "pipeline/run_settings.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kJournal = "journal";
constexpr const char* kSeed = "seed";

// They say where a run computes, what it tells and how its file is encoded, and change no latent or frame beyond the
// order of sums. A key that is not here, and not one of the strategy's, decides the video; so do those of kRounding.
constexpr const char* kRounding[] = {"kv_exchange_dtype", "attention_dtype", "attention_int8_limit"};
constexpr const char* kFree[] = {"model",
                                 "weight_cache",
                                 "weights_in_memory",
                                 "weight_memory",
                                 "keep_weights",
                                 "prompts",
                                 "num_videos",
                                 "batch_size",
                                 "output",
                                 "grid",
                                 "codec",
                                 "crf",
                                 "fps",
                                 "preview",
                                 "dump",
                                 "journal",
                                 "resume",
                                 "trace",
                                 "cache_compare",
                                 "vae_parallel",
                                 "memory_limit",
                                 "ranks",
                                 "threads",
                                 "hardware",
                                 "context_parallelism",
                                 "data_parallelism",
                                 "fsdp_parallelism",
                                 "tensor_parallelism",
                                 "flash_min_seq_length",
                                 "comm_timeout",
                                 "check_finite",
                                 "compare_one_rank"};

std::map<std::string, std::string> deciding_settings(GenerateOptions options) {
  // Files are compared by what they hold.
  for_each_input(options, [](const char*, fs::path& file) { file = file.filename(); });
  OptionSet set = describe_options(options);
  std::map<std::string, std::string> settings;
  for (const auto& setting : set.settings()) settings.insert(setting);
  for (const char* key : kFree) settings.erase(key);
  attention::StrategyOptions strategy;
  OptionSet of_strategy;
  attention::describe_strategy_options(of_strategy, strategy);
  for (const auto& setting : of_strategy.settings())
    if (std::ranges::find(kRounding, setting.first) == std::end(kRounding)) settings.erase(setting.first);
  return settings;
}

}  // namespace

RunIdentity Run::identity(std::vector<int64_t> seeds) const {
  RunIdentity identity;
  for (size_t v = 0; v < videos_.size(); ++v) {
    std::map<std::string, std::string> settings = deciding_settings(videos_[v]);
    settings[kSeed] = fmt::to_string(seeds[v]);
    if (v == 0) identity.settings = settings;
    else
      for (const auto& [key, value] : settings)
        if (identity.settings.at(key) != value) identity.settings[fmt::format("video {}: {}", v + 1, key)] = value;
  }
  const std::string lines = fingerprint(model_) + inputs_.fingerprint();
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = lines.find('\n', begin);
    const std::string line = lines.substr(begin, end - begin);
    const size_t equals = line.rfind('=');
    std::string& hashes = identity.files[line.substr(0, equals)];  // several reference images have one name
    hashes += line.substr(equals + 1);
    begin = end + 1;
  }
  identity.version = version();
  identity.seeds = std::move(seeds);
  return identity;
}

Run::RunJournal Run::open_journal(comm::Communicator& world, const Callbacks& callbacks) const {
  RunJournal opened;
  std::string refusal, bytes;
  const bool first = world.rank() == 0;
  try {
    if (first && journal_.resumes) {
      opened.journal = Journal::resume(journal_.folder, callbacks.note);
      const RunRecord& record = opened.journal->resumed();
      std::vector<int64_t> seeds;
      for (size_t v = 0; v < videos_.size(); ++v) {
        const bool drawn = videos_[v].seed < 0 && v < record.run.seeds.size();
        seeds.push_back(drawn ? record.run.seeds[v] : videos_[v].seed);
      }
      check_same_run(record.run, identity(seeds), journal_.folder);
      bytes = record.to_bytes();
    }
  } catch (const std::exception& error) {  // of the library for JSON, too
    refusal = error.what();
  }
  fail_together(world, refusal, kJournal);
  opened.folder = broadcast_text(world, 0, journal_.folder, kJournal);
  if (opened.folder.empty()) return opened;
  bytes = broadcast_text(world, 0, std::move(bytes), kJournal);
  opened.resumes = !bytes.empty();
  if (!opened.resumes) return opened;
  opened.from = RunRecord::from_bytes(bytes, journal_.folder);
  const RunRecord& from = opened.from;
  const Shape latents{plan_.videos, plan_.channels, plan_.latent[0], plan_.latent[1], plan_.latent[2]};
  const Shape tail{plan_.videos * plan_.segments.shared, options_.height, options_.width, 3};
  const auto within = [](int64_t value, int64_t low, int64_t high) { return low <= value && value <= high; };
  bool fits = within(from.segment, 0, plan_.segments.count - 1) && within(from.steps_done(), 0, plan_.steps()) &&
              from.run.seeds.size() == videos_.size() && (!from.latents || from.latents.shape() == latents) &&
              (from.latents || (!from.denoised && from.steps_done() == 0)) &&
              (!from.tail || from.tail.shape() == tail) && (from.tail || from.segment == 0);
  if (from.decode) {
    const DecodeState& decode = *from.decode;
    constexpr int kMostParts = 1 << 16;
    fits = fits && from.denoised && decode.segment == from.segment && within(decode.video, 0, plan_.videos - 1) &&
           within(decode.latent_frames, 0, plan_.latent[0]) && within(decode.parts, 1, kMostParts) &&
           within(decode.frames, 0, options_.num_frames + plan_.segments.frames);
  }
  if (!fits) fail("resume={}: is the journal of another run", opened.folder.string());
  if (first && callbacks.note) callbacks.note(fmt::format("Goes on {}", place_text(from)));
  return opened;
}

// A new journal, when the run is sure to begin.
void Run::begin_journal(comm::Communicator& world, const std::vector<int64_t>& seeds, const Callbacks& callbacks,
                        RunJournal& opened) const {
  if (opened.folder.empty() || opened.resumes) return;
  std::string refusal;
  try {
    if (world.rank() == 0) {
      opened.journal = Journal::begin(opened.folder, identity(seeds), callbacks.note);
      if (journal_.begun) journal_.begun();
    }
  } catch (const std::exception& error) {  // of the library for JSON, too
    refusal = error.what();
  }
  fail_together(world, refusal, kJournal);
}

std::string Run::place_text(const RunRecord& record) const {
  const std::string segment = plan_.segments.count > 1 ? fmt::format(" of segment {}", record.segment + 1) : "";
  if (record.decode) {
    const std::string video = plan_.videos > 1 ? fmt::format(" of video {}", record.decode->video + 1) : "";
    return fmt::format("after {} decoded frames{}{}", record.decode->frames, video, segment);
  }
  if (record.denoised) return fmt::format("with the decoding, after all steps{}", segment);
  return fmt::format("after step {} of {}{}", record.steps_done(), plan_.steps(), segment);
}

Run::JournalKeys Run::journal_keys(const GenerateOptions& options) {
  if (!options.resume.empty()) return {options.resume, options.resume, true};
  const std::string folder = options.journal == kNoJournal ? "" : options.journal;
  return {folder, folder, false};
}

}  // namespace zoetrope::pipeline
