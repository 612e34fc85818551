// How a run is noted and goes on, and what ranks must know before they begin.
#include <map>
#include <string>
#include <utility>

#include "zoetrope/version.h"

#include "base/error.h"
#include "base/file_lock.h"
#include "base/unfinished_files.h"
#include "pipeline/model_files/fingerprint.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/records/journal.h"
#include "pipeline/run.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/run_identity.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kJournal = "journal";
constexpr const char* kSeed = "seed";

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
  identity.files = hashes_by_file(fingerprint(model_) + inputs_.fingerprint());
  identity.version = version();
  identity.seeds = std::move(seeds);
  return identity;
}

// A certificate has the noise itself.
RunIdentity Run::journal_identity(std::vector<int64_t> seeds) const {
  RunIdentity noted = identity(std::move(seeds));
  noted.files.merge(hashes_by_file(fingerprint_of_noise()));
  return noted;
}

std::string Run::inputs_fingerprint() const { return inputs_.fingerprint() + fingerprint_of_noise(); }

std::string Run::fingerprint_of_noise() const {
  std::string lines;
  for (const GenerateOptions& video : videos_) lines += noise_fingerprint(video);
  return lines;
}

void Run::require_same_run(comm::Communicator& world) const {
  std::string settings;
  for (GenerateOptions copy : videos_) settings += describe_options(copy).values();
  // Ranks of one process share the model; other processes may have found something else under its path.
  const bool others = world.ranks_in_this_process() < world.size();
  require_agreement(world, settings + (others ? fingerprint(model_) + inputs_fingerprint() : ""));
  require_ranks(options_.ranks, world);
}

Run::RunJournal Run::open_journal(comm::Communicator& world, const Callbacks& callbacks) const {
  RunJournal opened;
  std::string bytes;
  const bool first = world.rank() == 0;
  fail_together(world, kJournal, [&] {
    if (!first || !journal_.resumes) return;
    opened.journal = Journal::resume(journal_.folder, callbacks.note);
    const RunRecord& record = opened.journal->resumed();
    std::vector<int64_t> seeds;
    for (size_t v = 0; v < videos_.size(); ++v) {
      const bool drawn = videos_[v].seed < 0 && v < record.run.seeds.size();
      seeds.push_back(drawn ? record.run.seeds[v] : videos_[v].seed);
    }
    check_same_run(record.run, journal_identity(seeds), journal_.folder);
    bytes = record.to_bytes();
  });
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
  fail_together(world, kJournal, [&] {
    if (world.rank() != 0) return;
    try {
      opened.journal = Journal::begin(opened.folder, journal_identity(seeds), callbacks.note);
      if (journal_.begun) journal_.begun();
    } catch (const Error& error) {
      if (opened.journal) opened.journal->complete();
      opened.journal.reset();
      opened.folder.clear();
      const bool taken = dynamic_cast<const TakenError*>(&error) != nullptr;
      if (journal_.required || taken || unfinished_files_removed()) throw;
      if (callbacks.note) callbacks.note(fmt::format("Note: this video is made without a journal: {}", error.what()));
    }
  });
  opened.folder = broadcast_text(world, 0, opened.folder, kJournal);
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
