// Where `zoetrope generate` notes its videos: one run in a folder, or several with a folder each inside it, beside the
// settings that started them. So resume=FOLDER needs no other word.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/folders.h"
#include "base/options.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/records/journal.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// Sets the keys of a run that did not end, but for those that are set already; how it used its ranks only where there
// are as many now. Throws Error where the folder has no journal.
void load_resumed_settings(const std::filesystem::path& folder, OptionSet& set);

// Where a run of these keys is noted if it is: the key's folder, or the one beside the output. Empty with journal=none,
// and where the output is a pipe or device.
std::filesystem::path journal_folder(const GenerateOptions& options);

// Whether a key says how ranks share the work, so that it is of one number of ranks.
bool says_how_ranks_are_used(const std::string& key);

// Whether a folder has a run, or some of several, to go on with.
bool is_noted(const std::filesystem::path& folder);

// On rank 0's process.
class SeriesJournal {
 public:
  // `runs`: how many follow one another, each on `ranks` ranks. Throws Error for keys that do not go together, and
  // where the journal that is resumed is of another series. `model` must outlive it.
  SeriesJournal(const GenerateOptions& options, const ModelFolder& model, size_t runs, int ranks);
  SeriesJournal(SeriesJournal&&) = delete;
  ~SeriesJournal();  // leaves no lock where nothing was noted

  // Whether the keys leave it to decide() if there is a journal.
  bool is_open() const { return is_open_; }
  // `seconds`: what one run is predicted to take. Says where the journal is, or nothing.
  std::optional<std::string> decide(double seconds);

  bool on() const { return !folder_.empty(); }
  std::string folder() const { return folder_.string(); }  // that resume= names
  // Of run `index`: where it is noted, and whether it has begun.
  std::string folder(size_t index) const;
  bool resumes(size_t index) const;
  bool is_between_runs(size_t index) const;  // some are noted, this one is not
  // Of a run that was complete when the series was interrupted.
  struct Before {
    std::string made;  // its files, with the keys of their encoding that are others now; empty where one is gone
    std::vector<int64_t> seeds;  // of its videos; empty: an older version noted none
  };
  // Empty where the run was not complete. Files may have been moved to the names `files`. Throws Error where one has
  // changed, and for a damaged note.
  Before before(size_t index, const std::vector<std::filesystem::path>& files, size_t videos) const;

  // That a resumed series was to write, but cannot, as it lacks the frames of finished videos; empty: it can, or none.
  const std::string& lost_grid() const { return lost_grid_; }

  // When the first new run has begun: writes the settings. `inputs`: Run::inputs_fingerprint().
  void begin(const std::string& inputs) const;
  // `seeds`: of its videos, as they were given or drawn.
  void note_made(size_t index, const std::vector<std::filesystem::path>& files,
                 const std::vector<int64_t>& seeds) const;
  // When all are: removes the folder.
  void complete() const;

 private:
  void read_model();
  void check_same_series();
  std::filesystem::path done_file(size_t index) const;
  void make_folder();

  const ModelFolder& model_;
  const GenerateOptions options_, chosen_;     // as they were given, and with what a budget chose
  std::map<std::string, std::string> hashes_;  // of the model, by file
  const size_t runs_;
  const int ranks_;
  std::filesystem::path folder_;
  const bool resumes_, is_open_;
  std::string lost_grid_;
  std::unique_ptr<MadeFolder> made_;   // of several
  std::unique_ptr<JournalLock> lock_;  // of several: none of their folders has one between two runs
};

}  // namespace zoetrope::pipeline
