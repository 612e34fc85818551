#include "pipeline/records/series_journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "attention/strategy_options.h"
#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"
#include "base/json.h"
#include "comm/launcher.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/model_files/fingerprint.h"
#include "pipeline/model_files/int8_budget.h"
#include "pipeline/outputs/videos.h"
#include "pipeline/settings/run_identity.h"
#include "pipeline/settings/run_settings.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRanks = "ranks";
constexpr const char* kModel = "model";
constexpr const char* kInputs = "inputs";
constexpr const char* kAsked = "asked";
constexpr const char* kDone = ".done";
constexpr const char* kFiles = "files";
constexpr const char* kSizes = "bytes";
constexpr const char* kEncoding = "encoding";
constexpr const char* kSeeds = "seeds";
constexpr double kLongRun = 600;  // seconds

// As they would be typed anywhere else.
std::map<std::string, std::string> settings_anywhere(GenerateOptions options) {
  const auto make_absolute = [](fs::path& file) {
    if (is_there(file)) file = fs::absolute(file);
  };
  for_each_input(options, [&](const char*, fs::path& file) { make_absolute(file); });
  for (std::string* output : {&options.output, &options.grid, &options.dump, &options.trace})
    if (!output->empty()) *output = fs::absolute(*output).string();
  for (std::string* prompt : {&options.prompt, &options.negative_prompt})
    if (prompt->starts_with('@')) prompt->insert(0, 1, '@');  // it is no file
  std::map<std::string, std::string> settings = changed_settings(options);
  settings["output"] = options.output;
  for (const char* key : {"journal", "resume"}) settings.erase(key);
  if (options.keeps_what_fits) settings.erase("keep_weights");  // nobody set it
  return settings;
}

// What may change between the videos of a series that resumes.
std::map<std::string, std::string> encoding(GenerateOptions options) {
  std::map<std::string, std::string> settings;
  for (const auto& [key, value] : describe_options(options).settings())
    if (key == "fps" || key == "codec" || key == "crf") settings[key] = value;
  return settings;
}

std::optional<int64_t> size_of(const fs::path& file) {
  const std::optional<FileStamp> stamp = stamp_of(file);
  return stamp ? std::optional(static_cast<int64_t>(stamp->bytes)) : std::nullopt;
}

std::string names_text(const fs::path& first, const fs::path& last) {
  if (first == last) return first.string();
  return fmt::format("{} to {}", first.string(), last.filename().string());
}

bool has_finished_videos(const fs::path& folder) {
  std::error_code ignored;
  const fs::directory_iterator entries(folder, ignored);
  return std::any_of(begin(entries), end(entries), [](const auto& entry) { return entry.path().extension() == kDone; });
}

fs::path beside_output(const std::string& output) { return without_last_slash(output).string() + ".journal"; }

bool is_stream(const std::string& output) {
  std::error_code ignored;
  return !fs::is_directory(output, ignored) && fs::path(output).has_filename() && output_place(output).stream;
}

std::optional<int64_t> ranks_of(const OptionSet& set) {
  if (set.origin(kRanks).empty()) return std::nullopt;
  for (const auto& [key, value] : set.settings())
    if (key == kRanks) return parse_integer(value, {});
  return std::nullopt;
}

// With the lines of a file of prompts in its place: it may change or go away.
GenerateOptions with_listed_prompts(GenerateOptions options) {
  if (options.prompts.empty()) return options;
  const std::vector<std::string> prompts = listed_prompts(options);
  options.prompts.clear();
  for (const std::string& prompt : prompts) options.prompts += prompt + "\n";
  return options;
}

// Keys that a budget set, with what they were before.
std::map<std::string, std::string> replaced(GenerateOptions asked, GenerateOptions chosen) {
  const auto before = describe_options(asked).settings(), after = describe_options(chosen).settings();
  std::map<std::string, std::string> settings;
  for (size_t i = 0; i < before.size(); ++i)
    if (before[i] != after[i]) settings.insert(before[i]);
  return settings;
}

// Of all its videos: what decides them and how many they are.
RunIdentity identity_of(const GenerateOptions& options, std::map<std::string, std::string> files) {
  RunIdentity identity;
  identity.settings = deciding_settings(options);
  identity.settings["num_videos"] = fmt::to_string(options.num_videos);
  identity.settings["batch_size"] = fmt::to_string(options.batch_size);
  if (!options.prompts.empty()) {
    const std::vector<std::string> prompts = listed_prompts(options);
    for (size_t i = 0; i < prompts.size(); ++i) identity.settings[fmt::format("prompt {}", i + 1)] = prompts[i];
  }
  identity.files = std::move(files);
  return identity;
}

}  // namespace

bool says_how_ranks_are_used(const std::string& key) {
  attention::StrategyOptions strategy;
  OptionSet of_strategy;
  attention::describe_layout_options(of_strategy, strategy);
  if (of_strategy.knows(key)) return true;
  constexpr std::string_view kMore[] = {"context_parallelism", "data_parallelism",   "fsdp_parallelism",
                                        "shard_weights",       "tensor_parallelism", "vae_parallel"};
  return std::find(std::begin(kMore), std::end(kMore), key) != std::end(kMore);
}

void load_resumed_settings(const fs::path& folder, OptionSet& set) {
  const fs::path file = folder / kSeriesSettings;
  if (!is_noted(folder)) Journal::resume(folder, {});  // says what is missing
  if (!is_there(file)) {                               // as of a program's run, whose settings are its own
    if (set.is_given(kModel) || set.is_given("transformer")) return;
    fail("resume={}: holds a run without its settings; repeat the run's own words, with resume={} and without journal",
         folder.string(), folder.string());
  }
  const JsonObject root = JsonObject::load(file), settings = root.object("settings");
  const auto before = root.get<int64_t>("ranks");
  const int64_t now = comm::launched_by_mpi() ? comm::launched_ranks() : ranks_of(set).value_or(before);
  // The words of a run whose budget has chosen may be said again: its choice takes their place.
  if (root.has(kAsked)) {
    const JsonObject asked = root.object(kAsked);
    for (const auto& [key, value] : set.settings()) {
      const std::string was = asked.has(key) ? asked.get<std::string>(key) : "";
      if (key == "budget" && !value.empty() && value != was && !asked.keys().empty())
        fail("budget={}: {} holds what {} chose; leave budget out", value, folder.string(),
             was.empty() ? "the default" : "budget=" + was);
      if (!asked.has(key) || !set.is_given(key)) continue;
      if (key != "int8_calibration" && was != value) continue;
      set.set(key, settings.has(key) ? settings.get<std::string>(key) : kDefaultValue, file.string());
    }
  }
  for (const std::string& key : settings.keys()) {
    if (!set.knows(key)) fail("{}: there is no key '{}' in this version", file.string(), key);
    if (key == kRanks ? comm::launched_by_mpi() : now != before && says_how_ranks_are_used(key)) continue;
    if (key == "grid" && has_finished_videos(folder)) continue;
    if (!set.is_given(key)) set.set(key, settings.get<std::string>(key), file.string());
  }
}

bool is_noted(const fs::path& folder) { return is_there(folder / kSeriesSettings) || Journal::is_in(folder); }

fs::path journal_folder(const GenerateOptions& options) {
  if (options.journal == kNoJournal) return {};
  if (!options.journal.empty()) return options.journal;
  return is_stream(options.output) ? fs::path() : beside_output(options.output);
}

SeriesJournal::SeriesJournal(const GenerateOptions& options, const ModelFolder& model, size_t runs, int ranks)
    : model_(model),
      options_(with_listed_prompts(options)),
      chosen_(with_choices(options_, model)),
      runs_(runs),
      ranks_(ranks),
      folder_(!options.resume.empty()         ? options.resume
              : options.journal == kNoJournal ? ""
                                              : options.journal),
      resumes_(!options.resume.empty()),
      is_open_(options.resume.empty() && options.journal.empty() && !is_stream(options.output)) {
  if (resumes_ && runs > 1 && !options.grid.empty() && has_finished_videos(folder_))
    fail("grid={}: a series that is resumed does not have the frames of finished videos; leave it out", options.grid);
  if (on()) read_model();
  if (resumes_) check_same_series();
  if (resumes_ && runs_ > 1) lock_ = std::make_unique<JournalLock>(folder_);
  make_folder();
}

SeriesJournal::~SeriesJournal() {
  std::error_code ignored;
  if (lock_ && !is_noted(folder_)) fs::remove(folder_ / kJournalLock, ignored);
}

// Before it is needed: between a journal's first record and its settings as little time is to pass as can be.
void SeriesJournal::read_model() { hashes_ = hashes_by_file(fingerprint(model_)); }

// A run that is under way compares more. But a series may have been cut off between two.
void SeriesJournal::check_same_series() {
  if (Journal::is_in(folder_)) {
    if (runs_ == 1) return;
    fail("resume={}: holds one run, but {} are asked for; leave out num_videos, prompts or batch_size",
         folder_.string(), runs_);
  }
  const fs::path file = folder_ / kSeriesSettings;
  if (!is_there(file)) return;
  const JsonObject root = JsonObject::load(file), settings = root.object("settings");
  GenerateOptions kept;
  OptionSet set = describe_options(kept);
  for (const std::string& key : settings.keys()) set.set(key, settings.get<std::string>(key), file.string());
  read_text_files(kept);
  if (options_.grid.empty() && has_finished_videos(folder_)) lost_grid_ = kept.grid;
  // Older journals lack them.
  std::map<std::string, std::string> kept_files = root.has(kModel) ? texts(root.object(kModel)) : hashes_;
  std::map<std::string, std::string> files = hashes_;
  if (root.has(kInputs)) {
    const GenerateOptions sized = with_size_of_inputs(chosen_, model_);
    kept_files.merge(texts(root.object(kInputs)));
    files.merge(hashes_by_file(read_inputs(sized, model_).fingerprint() + noise_fingerprint(sized)));
  }
  kept = with_choices(with_listed_prompts(std::move(kept)), model_);
  check_same_run(identity_of(kept, std::move(kept_files)), identity_of(chosen_, std::move(files)), folder_);
}

void SeriesJournal::make_folder() {
  if (!on() || runs_ == 1 || resumes_) return;
  if (is_there(folder_ / kSeriesSettings))
    fail(
        "journal={}: holds videos that are not all made; resume={} goes on with them, removing the folder gives them "
        "up",
        folder_.string(), folder_.string());
  made_ = std::make_unique<MadeFolder>(folder_);
  lock_ = std::make_unique<JournalLock>(folder_);
}

std::optional<std::string> SeriesJournal::decide(double seconds) {
  if (seconds * static_cast<double>(runs_) <= kLongRun) return std::nullopt;
  folder_ = journal_folder(options_);
  read_model();
  make_folder();
  return fmt::format(
      "Noted in {}: after an interruption `zoetrope generate resume={}` goes on; journal=none turns it off",
      folder_.string(), folder_.string());
}

std::string SeriesJournal::folder(size_t index) const {
  return runs_ == 1 ? folder_.string() : (folder_ / fmt::format("{:03}", index)).string();
}

bool SeriesJournal::resumes(size_t index) const { return resumes_ && (runs_ == 1 || Journal::is_in(folder(index))); }

bool SeriesJournal::is_between_runs(size_t index) const {
  return on() && runs_ > 1 && is_noted(folder_) && !Journal::is_in(folder(index));
}

fs::path SeriesJournal::done_file(size_t index) const { return folder(index) + kDone; }

SeriesJournal::Before SeriesJournal::before(size_t index, const std::vector<fs::path>& files, size_t videos) const {
  const fs::path done = done_file(index);
  if (!resumes_ || runs_ == 1 || !is_there(done)) return {};
  const std::string text = read_file(done, SIZE_MAX, InputFile::Kind::kCache);
  if (text.empty())  // of a version that noted no more
    return {std::ranges::all_of(files, is_there) ? names_text(files.front(), files.back()) : "", {}};
  const JsonObject root = JsonObject::parse(text, done.string());
  const auto names = root.get<std::vector<std::string>>(kFiles);
  const auto sizes = root.get<std::vector<int64_t>>(kSizes);
  Before before;
  if (root.has(kSeeds)) before.seeds = root.get<std::vector<int64_t>>(kSeeds);
  if (names.empty() || names.size() != sizes.size() || (root.has(kSeeds) && before.seeds.size() != videos))
    fail("{}: is damaged; remove it to make the video again", done.string());
  bool are_there = true, have_moved = files.size() == names.size();
  for (size_t i = 0; i < names.size(); ++i) {
    const std::optional<int64_t> size = size_of(names[i]);
    if (size && *size != sizes[i])
      fail("resume={}: {} has changed since it was made, from {} to {} bytes; move it away to make it again",
           folder_.string(), names[i], sizes[i], *size);
    are_there = are_there && size;
    have_moved = have_moved && size_of(files[i]) == sizes[i];
  }
  if (!are_there && !have_moved) return before;
  before.made = are_there ? names_text(names.front(), names.back()) : names_text(files.front(), files.back());
  const std::map<std::string, std::string> now = encoding(chosen_);
  for (const auto& [key, value] : texts(root.object(kEncoding)))
    if (const auto found = now.find(key); found != now.end() && found->second != value)
      before.made += fmt::format(", with {}={}", key, value.empty() ? kDefaultValue : value);
  return before;
}

void SeriesJournal::begin(const std::string& inputs) const {
  const fs::path file = folder_ / kSeriesSettings;
  if (is_there(file) && runs_ > 1) return;
  const nlohmann::json root{{kRanks, ranks_},
                            {kModel, hashes_},
                            {kInputs, hashes_by_file(inputs)},
                            {kAsked, replaced(options_, chosen_)},
                            {"settings", settings_anywhere(chosen_)}};
  write_file(file, exact_json_text(root, 1));
}

void SeriesJournal::note_made(size_t index, const std::vector<fs::path>& files,
                              const std::vector<int64_t>& seeds) const {
  if (!on() || runs_ == 1) return;
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  for (const fs::path& file : files) {
    names.push_back(fs::absolute(file).string());
    sizes.push_back(size_of(file).value_or(0));
  }
  const nlohmann::json root{{kFiles, names}, {kSizes, sizes}, {kSeeds, seeds}, {kEncoding, encoding(chosen_)}};
  write_file(done_file(index), exact_json_text(root, 1));
}

void SeriesJournal::complete() const {
  if (!on()) return;
  for (size_t index = 0; index < runs_; ++index)
    if (Journal::is_in(folder(index))) return;  // which resume= goes on with
  std::error_code ignored;
  if (lock_) fs::remove(folder_ / kJournalLock, ignored);
  for (size_t index = 0; runs_ > 1 && index < runs_; ++index) fs::remove(done_file(index), ignored);
  fs::remove(folder_ / kSeriesSettings, ignored);
  fs::remove(folder_, ignored);
}

}  // namespace zoetrope::pipeline
