#include "pipeline/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/media/video.h"
#include "pipeline/inputs/inputs.h"
#include "pipeline/outputs/dump.h"
#include "pipeline/outputs/video_grid.h"
#include "pipeline/outputs/videos.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/hosts.h"
#include "pipeline/records/series_journal.h"
#include "pipeline/run.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

// Opens every output and abandons it: what cannot be written is said before the first video is computed.
void try_outputs(const GenerateOptions& video, const VideoFormat& format) {
  video_file(video.output)(format);
  const Dump dump(video.dump);
  if (!video.trace.empty()) check_writable(video.trace);
}

// A file that says when it is complete, and gives the grid its frames.
class NotedFile final : public FrameSink {
 public:
  NotedFile(const std::string& output, const VideoFormat& format, bool& complete, VideoGrid* grid, size_t number)
      : file_(video_file(output)(format)), complete_(complete), grid_(grid), number_(number) {}
  void add_values(const float* rgb) override { file_->add_values(rgb); }
  void add_frame(const uint8_t* rgb) override {
    file_->add_frame(rgb);
    if (grid_ != nullptr) grid_->add_frame(number_ - 1, rgb);
  }
  void finish() override {
    file_->finish();
    complete_ = true;
  }
  PixelRounding rounding() const override { return file_->rounding(); }

 private:
  const std::unique_ptr<FrameSink> file_;
  bool& complete_;
  VideoGrid* const grid_;
  const size_t number_;
};

// "clip.mp4", "frames/", "clip-0000.png to clip-0080.png".
std::string written_text(const std::string& output, const std::vector<fs::path>& files) {
  if (files.front().parent_path() == (fs::path(output) / "").parent_path()) return output;
  if (files.size() == 1) return files.front().string();
  return fmt::format("{} to {}", files.front().string(), files.back().filename().string());
}

struct FileResult : GenerateResult {
  std::string output;
  bool complete = false;

  OpenSink sink(VideoGrid* shown_in) {
    return [this, shown_in](const VideoFormat& format) {
      seed = parse_integer(format.metadata.at("seed"), {});
      const std::vector<fs::path> files = io::files_of_clip(output, format.frames);
      written = written_text(output, files);
      std::error_code ignored;
      replaced = std::ranges::count_if(files, [&](const fs::path& file) { return fs::is_regular_file(file, ignored); });
      removed = std::ssize(io::later_files(output, format.frames));
      if (shown_in != nullptr) shown_in->begin_video(number - 1, format);
      return std::make_unique<NotedFile>(output, format, complete, shown_in, number);
    };
  }
};

std::string seed_text(int64_t seed) { return seed < 0 ? "a seed that is drawn" : fmt::format("seed {}", seed); }

// Of this process in the job.
struct Place {
  bool first;  // rank 0 is here
  int ranks, processes_here;
};

std::vector<GenerateOptions> checked(std::vector<GenerateOptions> videos) {
  for (const GenerateOptions& video : videos) {
    check_options(video);
    if (video.output.empty()) fail("output: name a file (NAME.mp4, .mov, .webm, .webp, .gif, .png) or a folder");
  }
  return videos;
}

// The videos of one call, batch after batch. `world`: the ranks of a job; null: threads of this process.
class Series {
 public:
  Series(std::vector<GenerateOptions> videos, const GenerateOptions& options, const Place& place,
         const Callbacks& callbacks, const VideoDone& done, comm::Communicator* world)
      : videos_(checked(std::move(videos))),
        options_(options),
        batch_(static_cast<size_t>(options.batch_size)),
        place_(place),
        callbacks_(callbacks),
        done_(done),
        world_(world),
        model_(videos_.front()),
        sized_(videos_.front()) {}

  void make() {
    if (videos_.size() > 1) try_all();
    if (!options_.grid.empty()) open_grid();
    if (sized_.keeps_what_fits) choose_kept_weights();
    if (place_.first) open_journal();
    for (size_t begin = 0; begin < videos_.size(); begin += batch_) make_batch(begin);
    if (journal_) journal_->complete();
  }

 private:
  void note(const std::string& text) const {
    if (place_.first && callbacks_.note) callbacks_.note(text);
  }
  std::vector<GenerateOptions> batch_at(size_t begin) const {
    const auto from = videos_.begin() + static_cast<std::ptrdiff_t>(begin);
    return {from, from + static_cast<std::ptrdiff_t>(std::min(batch_, videos_.size() - begin))};
  }
  std::string text_of(size_t begin) const {
    const size_t end = std::min(begin + batch_, videos_.size());
    return end - begin == 1 ? fmt::format("video {} of {}", end, videos_.size())
                            : fmt::format("videos {} to {} of {}", begin + 1, end, videos_.size());
  }
  std::vector<fs::path> files_at(size_t begin) const {
    std::vector<fs::path> files;
    for (const GenerateOptions& video : batch_at(begin))
      for (fs::path& file : io::files_of_clip(video.output, sized_.num_frames)) files.push_back(std::move(file));
    return files;
  }

  // The run of a single video does this by itself.
  void try_all() {
    for (size_t begin = 0; begin < videos_.size(); begin += batch_) check_batch(model_, batch_at(begin));
    sized_ = with_size_of_inputs(sized_, model_.folder);
    if (!place_.first) return;
    for (const GenerateOptions& video : videos_) try_outputs(video, video_format(sized_));
  }

  void open_grid() {
    const VideoFormat format = video_format(sized_);
    // Of the first process, but what is compared with it is a share of the host's memory.
    model_.grid_frames = VideoGrid::bytes(videos_.size(), sized_.num_frames, format) / place_.processes_here;
    if (place_.first) grid_.emplace(options_.grid, videos_.size(), format);
  }

  void choose_kept_weights() {
    const RankPlan planned = Run::plan_before(model_, batch_at(0), world_);
    if (planned.keep_weights != sized_.keep_weights && planned.fits)
      note("Memory is short of what several videos keep: " + keep_weights_text(planned.keep_weights));
    model_.keep(planned.keep_weights);
    for (GenerateOptions& video : videos_) {
      video.keep_weights = planned.keep_weights;
      video.keeps_what_fits = false;
    }
  }

  void open_journal() {
    journal_.emplace(options_, model_.folder, (videos_.size() + batch_ - 1) / batch_, place_.ranks);
    for (size_t begin = 0; begin < videos_.size(); begin += batch_)
      before_.push_back(journal_->before(begin / batch_, files_at(begin), batch_at(begin).size()));
    if (!journal_->lost_grid().empty())
      note(fmt::format("Note: grid={} is not written: some of the videos that it shows were made before",
                       journal_->lost_grid()));
  }

  // Before a run: the first one says how long all are predicted to take.
  void use_journal(size_t index, Run& run) {
    if (journal_->is_open() && index == 0) {
      const std::optional<double> seconds = run.forecast(place_.ranks, place_.processes_here).seconds;
      if (const std::optional<std::string> where = seconds ? journal_->decide(*seconds) : std::nullopt) note(*where);
    }
    if (!journal_->on()) return run.use_journal({});
    run.use_journal({.folder = journal_->folder(index),
                     .named = journal_->folder(),
                     .resumes = journal_->resumes(index),
                     .required = !journal_->is_between_runs(index),
                     .begun = [this, &run] { journal_->begin(run.inputs_fingerprint()); }});
  }

  void note_made(size_t begin, const std::vector<FileResult>& results) const {
    std::vector<int64_t> seeds;
    for (const FileResult& result : results) seeds.push_back(result.seed);
    try {
      journal_->note_made(begin / batch_, files_at(begin), seeds);
    } catch (const Error& error) {
      note(fmt::format("Note: a series that resumes makes this again: {}", error.what()));
    }
    if (begin + batch_ >= videos_.size()) journal_->complete();
  }

  void give(std::vector<FileResult>& results) const {
    for (FileResult& result : results)
      if (done_) done_(std::move(result));
  }

  // Whether the batch was made before. Where it was, but its files are gone, it takes the seeds that were drawn then.
  bool was_made(size_t begin, std::vector<GenerateOptions>& batch) const {
    std::vector<int64_t> seeds(batch.size(), -1);
    bool made = false;
    if (place_.first) {
      const SeriesJournal::Before& before = before_[begin / batch_];
      made = !before.made.empty();
      if (!before.seeds.empty()) seeds = before.seeds;
    }
    if (world_ != nullptr) {
      world_->broadcast(0, &made, sizeof made, "videos that were made before");
      world_->broadcast(0, seeds.data(), seeds.size() * sizeof(int64_t), "seeds of videos that were made before");
    }
    for (size_t i = 0; i < batch.size(); ++i)
      if (batch[i].seed < 0) batch[i].seed = seeds[i];
    return made;
  }

  void make_batch(size_t begin) {
    std::vector<GenerateOptions> batch = batch_at(begin);
    if (was_made(begin, batch)) {
      if (place_.first) note(fmt::format("Made before: {}, {}", text_of(begin), before_[begin / batch_].made));
      return;
    }
    const size_t count = videos_.size();
    std::vector<FileResult> results(batch.size());
    std::vector<OpenSink> files;
    for (size_t i = 0; i < batch.size(); ++i) {
      const GenerateOptions& video = batch[i];
      if (count > 1)
        note(fmt::format("Video {} of {}: {}, '{}'", begin + i + 1, count, seed_text(video.seed), video.prompt));
      results[i].number = begin + i + 1;
      results[i].videos = count;
      results[i].output = video.output;
      files.push_back(results[i].sink(grid_ ? &*grid_ : nullptr));
    }
    try {
      Run one(model_, batch);
      if (place_.first) use_journal(begin / batch_, one);
      std::vector<Video> made =
          world_ != nullptr ? one.run(*world_, files, callbacks_) : one.run_on_threads(files, callbacks_);
      for (size_t i = 0; i < batch.size(); ++i) static_cast<Video&>(results[i]) = std::move(made[i]);
    } catch (const Error& error) {
      const bool complete = std::ranges::all_of(results, &FileResult::complete);  // a dump or trace was not
      if (place_.first && complete) note_made(begin, results);
      std::erase_if(results, [](const FileResult& result) { return !result.complete; });
      give(results);
      if (count == 1) throw;
      // The run says it where it has begun.
      if (place_.first && journal_->is_between_runs(begin / batch_)) note(resume_note(journal_->folder()));
      fail("{}: {}", text_of(begin), error.what());
    }
    if (!place_.first) return;
    note_made(begin, results);
    if (grid_ && begin + batch.size() == count) write_grid(results);
    give(results);
  }

  void write_grid(std::vector<FileResult>& results) {
    try {
      grid_->write();
    } catch (const Error&) {
      give(results);
      throw;
    }
    results.back().grid = grid_->file();
  }

  std::vector<GenerateOptions> videos_;
  const GenerateOptions options_;
  const size_t batch_;
  const Place place_;
  const Callbacks& callbacks_;
  const VideoDone& done_;
  comm::Communicator* const world_;
  OpenModel model_;
  GenerateOptions sized_;  // the first video, of several with the size of its inputs
  std::optional<VideoGrid> grid_;
  std::optional<SeriesJournal> journal_;       // on the first process
  std::vector<SeriesJournal::Before> before_;  // by batch
};

// What all ranks must have alike before the first video: each checks its own settings again.
std::string series_text(const std::vector<GenerateOptions>& videos, int64_t batch_size) {
  std::string text = fmt::format("number of videos={}\nbatch_size={}\nkeep_weights {}\n", videos.size(), batch_size,
                                 videos.front().keeps_what_fits ? "unset" : "set, or for one video");
  for (size_t i = 0; i < videos.size(); ++i) text += fmt::format("prompt {}={}\n", i + 1, videos[i].prompt);
  return text;
}

}  // namespace

void generate(const GenerateOptions& given, const Callbacks& callbacks, const VideoDone& done) {
  const auto ranks = static_cast<int>(given.ranks.value_or(1));
  const GenerateOptions options = with_device_batch(given, ranks);
  Series(videos_of(options), options, {true, ranks, 1}, callbacks, done, nullptr).make();
}

void generate(comm::Communicator& world, const GenerateOptions& given, const Callbacks& callbacks,
              const VideoDone& done) {
  const GenerateOptions options = with_device_batch(given, world.size());
  const std::vector<GenerateOptions> videos = videos_of(options);
  require_agreement(world, series_text(videos, options.batch_size));
  Series(videos, options, {world.rank() == 0, world.size(), processes_on_this_host(world)}, callbacks, done, &world)
      .make();
}

}  // namespace zoetrope::pipeline
