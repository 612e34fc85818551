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

std::string batch_text(size_t begin, size_t end, size_t count) {
  return end - begin == 1 ? fmt::format("video {} of {}", end, count)
                          : fmt::format("videos {} to {} of {}", begin + 1, end, count);
}

// Of this process in the job.
struct Place {
  bool first;  // rank 0 is here
  int ranks, processes_here;
};

// Before run `index`: the first one says how long all are predicted to take.
void choose_journal(SeriesJournal& journal, size_t index, Run& run, const Place& place, const Callbacks& callbacks) {
  if (journal.is_open() && index == 0) {
    const std::optional<double> seconds = run.forecast(place.ranks, place.processes_here).seconds;
    const std::optional<std::string> note = seconds ? journal.decide(*seconds) : std::nullopt;
    if (note && callbacks.note) callbacks.note(*note);
  }
  if (!journal.on()) return run.use_journal("", "", false);
  run.use_journal(journal.folder(index), journal.folder(), journal.resumes(index), !journal.is_between_runs(index),
                  [&] { journal.begin(run.inputs_fingerprint()); });
}

// `world`: the ranks of a job; null: options.ranks threads of this process.
void generate_files(std::vector<GenerateOptions> videos, const GenerateOptions& options, const Place& place,
                    const Callbacks& callbacks, const VideoDone& done, comm::Communicator* world) {
  const bool first = place.first;
  for (const GenerateOptions& video : videos) {
    check_options(video);
    if (video.output.empty()) fail("output: name a file (NAME.mp4, .mov, .webm, .webp, .gif, .png) or a folder");
  }
  OpenModel model(videos.front());
  const size_t count = videos.size(), batch = static_cast<size_t>(options.batch_size);
  const auto batch_at = [&](size_t begin) {
    const auto from = videos.begin() + static_cast<std::ptrdiff_t>(begin);
    return std::vector<GenerateOptions>(from, from + static_cast<std::ptrdiff_t>(std::min(batch, count - begin)));
  };
  GenerateOptions sized = videos.front();
  if (count > 1) {  // the run of a single one does this
    for (size_t begin = 0; begin < count; begin += batch) check_batch(model, batch_at(begin));
    sized = with_size_of_inputs(sized, model.folder);
    if (first)
      for (const GenerateOptions& video : videos) try_outputs(video, video_format(sized));
  }
  std::optional<VideoGrid> grid;
  if (!options.grid.empty()) {
    // Of the first process, but what is compared with it is a share of the host's memory.
    model.grid_frames = VideoGrid::bytes(count, sized.num_frames, video_format(sized)) / place.processes_here;
    if (first) grid.emplace(options.grid, count, video_format(sized));
  }
  if (sized.keeps_what_fits) {
    const AutoPlan planned = Run::plan_before(model, batch_at(0), world);
    const KeepWeights keep = planned.keep_weights;
    if (keep != sized.keep_weights && planned.fits && first && callbacks.note)
      callbacks.note("Memory is short of what several videos keep: " + keep_weights_text(keep));
    model.keep(keep);
    for (GenerateOptions& video : videos) {
      video.keep_weights = keep;
      video.keeps_what_fits = false;
    }
  }
  const auto files_at = [&](size_t begin) {
    std::vector<fs::path> files;
    for (const GenerateOptions& video : batch_at(begin))
      for (fs::path& file : io::files_of_clip(video.output, sized.num_frames)) files.push_back(std::move(file));
    return files;
  };
  std::optional<SeriesJournal> journal;
  std::vector<std::string> made_before;  // by batch
  if (first) {
    journal.emplace(options, model.folder, (count + batch - 1) / batch, place.ranks);
    for (size_t begin = 0; begin < count; begin += batch)
      made_before.push_back(journal->made_before(begin / batch, files_at(begin)));
    if (callbacks.note && !journal->lost_grid().empty())
      callbacks.note(fmt::format("Note: grid={} is not written: some of the videos that it shows were made before",
                                 journal->lost_grid()));
  }
  const auto note_made = [&](size_t begin) {
    try {
      journal->note_made(begin / batch, files_at(begin));
    } catch (const Error& error) {
      if (callbacks.note) callbacks.note(fmt::format("Note: a series that resumes makes this again: {}", error.what()));
    }
    if (begin + batch >= count) journal->complete();
  };
  for (size_t begin = 0; begin < count; begin += batch) {
    const std::vector<GenerateOptions> now = batch_at(begin);
    bool made = first && !made_before[begin / batch].empty();
    if (world != nullptr) world->broadcast(0, &made, sizeof made, "videos that were made before");
    if (made) {
      if (first && callbacks.note)
        callbacks.note(fmt::format("Made before: {}, {}", batch_text(begin, begin + now.size(), count),
                                   made_before[begin / batch]));
      continue;
    }
    std::vector<FileResult> results(now.size());
    std::vector<OpenSink> files;
    for (size_t i = 0; i < now.size(); ++i) {
      const GenerateOptions& video = now[i];
      if (count > 1 && first && callbacks.note) {
        callbacks.note(
            fmt::format("Video {} of {}: {}, '{}'", begin + i + 1, count, seed_text(video.seed), video.prompt));
      }
      results[i].number = begin + i + 1;
      results[i].videos = count;
      results[i].output = video.output;
      files.push_back(results[i].sink(grid ? &*grid : nullptr));
    }
    try {
      Run one(model, now);
      if (first) choose_journal(*journal, begin / batch, one, place, callbacks);
      std::vector<Video> videos_made =
          world != nullptr ? one.run(*world, files, callbacks) : one.run_on_threads(files, callbacks);
      for (size_t i = 0; i < now.size(); ++i) static_cast<Video&>(results[i]) = std::move(videos_made[i]);
    } catch (const Error& error) {
      const bool complete = std::ranges::all_of(results, &FileResult::complete);  // a dump or trace was not
      if (first && complete) note_made(begin);
      for (FileResult& result : results)
        if (done && result.complete) done(std::move(result));
      if (count == 1) throw;
      // The run says it where it has begun.
      if (first && callbacks.note && journal->is_between_runs(begin / batch))
        callbacks.note(resume_note(journal->folder()));
      fail("{}: {}", batch_text(begin, begin + now.size(), count), error.what());
    }
    if (first) note_made(begin);
    if (grid && begin + now.size() == count) {
      try {
        grid->write();
        results.back().grid = grid->file();
      } catch (const Error&) {
        for (FileResult& result : results)
          if (done) done(std::move(result));
        throw;
      }
    }
    if (!first || !done) continue;
    for (FileResult& result : results) done(std::move(result));
  }
  if (journal) journal->complete();
}

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
  generate_files(videos_of(options), options, {true, ranks, 1}, callbacks, done, nullptr);
}

void generate(comm::Communicator& world, const GenerateOptions& given, const Callbacks& callbacks,
              const VideoDone& done) {
  const GenerateOptions options = with_device_batch(given, world.size());
  const std::vector<GenerateOptions> videos = videos_of(options);
  require_agreement(world, series_text(videos, options.batch_size));
  generate_files(videos, options, {world.rank() == 0, world.size(), processes_on_this_host(world)}, callbacks, done,
                 &world);
}

}  // namespace zoetrope::pipeline
