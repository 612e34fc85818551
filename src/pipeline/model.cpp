// The public Model: runs one after another over one OpenModel.
#include "zoetrope/model.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "base/cancel.h"
#include "base/error.h"
#include "base/ticking_wait.h"
#include "base/words.h"
#include "comm/launcher.h"
#include "pipeline/model_call.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/ranks/comm_timeout.h"
#include "pipeline/ranks/watched_ranks.h"
#include "pipeline/run.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope {

namespace {

// Calls from several threads follow one another.
class Turns {
 public:
  class Turn {
   public:
    // Throws Error where it is cancelled while it waits.
    Turn(Turns& turns, const Callbacks& callbacks) : turns_(turns) {
      std::unique_lock lock(turns_.mutex_);
      wait_ticking(
          lock, turns_.freed_, kBetweenQuestions, [&] { return !turns_.taken_; },
          [&] { stop_if_cancelled(callbacks.cancelled, "while it waited for another call of the model"); });
      turns_.taken_ = true;
    }
    ~Turn() {
      const std::lock_guard lock(turns_.mutex_);
      turns_.taken_ = false;
      turns_.freed_.notify_one();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
  };

 private:
  static constexpr std::chrono::milliseconds kBetweenQuestions{50};
  std::mutex mutex_;
  std::condition_variable freed_;
  bool taken_ = false;
};

// Under mpirun calls of all models follow one another, but for those in a callback of another's: a process numbers the
// communicators that its runs split off, and two threads would give the same numbers.
Turns& turns_of_process() {
  static Turns turns;
  return turns;
}

// What must be the same on every rank of a call.
std::string agreed_lines(const std::vector<pipeline::GenerateOptions>& videos, const Callbacks& callbacks) {
  std::string lines = counted(std::ssize(videos), "video") + " in a call\n";
  lines += callbacks.latents ? "a callback that sees latents\n" : "no callback that sees latents\n";
  for (pipeline::GenerateOptions video : videos) {
    lines += video.decode ? "decode=true (frames)\n" : "decode=false (latents alone)\n";
    lines += pipeline::describe_options(video).values();
  }
  return lines;
}

}  // namespace

struct Model::Impl {
  explicit Impl(const pipeline::GenerateOptions& options) : model(options) {}

  std::vector<pipeline::GenerateOptions> options_of(const std::vector<Request>& requests, bool frames_in_memory) const {
    std::vector<pipeline::GenerateOptions> videos;
    for (const Request& request : requests) {
      pipeline::GenerateOptions& options = videos.emplace_back(model.options);
      static_cast<Request&>(options) = request;
      options.output.clear();
      options.frames_in_memory = frames_in_memory;
    }
    return videos;
  }

  // The run of one call, shared by its ranks in this process and made by the first of them. `call`: rank 0's place in
  // the job, and a number that it drew.
  using Call = std::pair<int, int64_t>;
  std::shared_ptr<pipeline::Run> shared_run(const Call& call, const std::vector<pipeline::GenerateOptions>& videos,
                                            bool keeps_timeout) {
    const std::lock_guard lock(mutex);
    std::erase_if(runs, [](const auto& run) { return run.second.expired(); });
    std::shared_ptr<pipeline::Run> run = runs[call].lock();
    if (run) return run;
    runs[call] = run = std::make_shared<pipeline::Run>(model, videos, model.of_others());
    if (keeps_timeout) run->keep_timeout();
    return run;
  }

  // The part of one rank.
  std::vector<Video> generate(comm::Communicator& world, bool keeps_timeout, const std::vector<Request>& requests,
                              const std::vector<OpenSink>& sinks, const Callbacks& callbacks) {
    // Rank 0 alone knows whether there is a sink, so its process plans for frames in memory.
    const bool has_frames = world.rank() == 0 || world.ranks_in_this_process() > 1;
    std::vector<pipeline::GenerateOptions> videos = options_of(requests, has_frames);
    if (!has_frames)
      for (pipeline::GenerateOptions& video : videos) video.sink_value_bytes = 0;
    pipeline::require_agreement(world, agreed_lines(videos, callbacks));
    Call call{world.world_rank(0), next_call};
    if (world.rank() == 0) call.second = next_call++;
    world.broadcast(0, &call.second, sizeof call.second, "call");
    std::shared_ptr<pipeline::Run> run;
    pipeline::fail_together(world, "call", [&] { run = shared_run(call, videos, keeps_timeout); });
    return run->run(world, sinks, callbacks);
  }

  // As this process' rank of an MPI job. Throws what this rank threw, or Error with what another one did.
  std::vector<Video> generate_over_mpi(const std::vector<Request>& requests, const std::vector<OpenSink>& sinks,
                                       const Callbacks& callbacks) {
    const comm::RankOptions options = pipeline::rank_options(model.options);
    if (!mpi_world) mpi_world = comm::mpi_world(options);
    if (!mpi_ranks) mpi_ranks.emplace(*mpi_world, options.timeout_seconds);
    std::vector<Video> videos;
    const auto failure = mpi_ranks->run([&](comm::Communicator& ranks, const std::function<bool()>& stopped) {
      Callbacks either = callbacks;
      either.cancelled = [&] { return stopped() || (callbacks.cancelled && callbacks.cancelled()); };
      // One per call: it counts as its rank's thread that split it off, and any thread may call.
      videos = generate(*ranks.split(0, ranks.rank()), false, requests, sinks, either);
    });
    if (!failure) return videos;
    model.experts.release_shards();  // they gather over a communicator that has been stopped
    if (failure->thrown) std::rethrow_exception(failure->thrown);
    fail("rank {} failed: {}", failure->rank, failure->why);
  }

  pipeline::OpenModel model;
  Turns turns;
  std::atomic<int64_t> next_call = 0;
  std::mutex mutex;
  std::map<Call, std::weak_ptr<pipeline::Run>> runs;
  std::unique_ptr<comm::Communicator> mpi_world;
  std::optional<pipeline::WatchedRanks> mpi_ranks;  // of mpi_world
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::filesystem::path& folder, const ModelOptions& options, const Request& usual) {
  if (folder.empty() && options.transformer.empty())
    fail("Model::open: name a checkpoint folder in the diffusers layout");
  pipeline::GenerateOptions all;
  static_cast<ModelOptions&>(all) = options;
  all.guidance_scale = usual.guidance_scale;
  all.guidance_scale_2 = usual.guidance_scale_2;
  all.cache = usual.cache;
  all.model = folder.string();
  return Model(std::make_unique<Impl>(all));
}

Video Model::generate(const Request& request, const Callbacks& callbacks) { return generate(request, {}, callbacks); }

namespace {

std::vector<OpenSink> sinks_of(const OpenSink& sink) { return sink ? std::vector{sink} : std::vector<OpenSink>(); }

void check_sinks(const std::vector<Request>& requests, const std::vector<OpenSink>& sinks) {
  if (sinks.empty() || sinks.size() == requests.size()) return;
  fail("sinks: {} for {} requests; give one for each, or none", sinks.size(), requests.size());
}

}  // namespace

Video Model::generate(const Request& request, const OpenSink& sink, const Callbacks& callbacks) {
  return std::move(generate(std::vector{request}, sinks_of(sink), callbacks).front());
}

Video Model::generate(comm::Communicator& world, const Request& request, const OpenSink& sink,
                      const Callbacks& callbacks) {
  return std::move(generate(world, std::vector{request}, sinks_of(sink), callbacks).front());
}

std::vector<Video> Model::generate(const std::vector<Request>& requests, const std::vector<OpenSink>& sinks,
                                   const Callbacks& callbacks) {
  check_sinks(requests, sinks);
  const pipeline::ModelCall call(impl_.get());
  const std::vector<OpenSink> marked_sinks = call.marked(sinks);
  const Callbacks marked = call.marked(callbacks);
  const bool over_mpi = comm::launched_by_mpi();
  std::optional<Turns::Turn> of_process;  // before the model's: a callback may hold it and call a second model
  if (over_mpi && pipeline::ModelCall::around_this_thread() == nullptr) of_process.emplace(turns_of_process(), marked);
  const Turns::Turn turn(impl_->turns, marked);
  if (over_mpi) return impl_->generate_over_mpi(requests, marked_sinks, marked);
  return pipeline::Run(impl_->model, impl_->options_of(requests, sinks.empty()), impl_->model.of_others())
      .run_on_threads(marked_sinks, marked);
}

std::vector<Video> Model::generate(comm::Communicator& world, const std::vector<Request>& requests,
                                   const std::vector<OpenSink>& sinks, const Callbacks& callbacks) {
  check_sinks(requests, sinks);
  return impl_->generate(world, true, requests, sinks, callbacks);
}

std::string Model::describe(const Request& request) const {
  const pipeline::Run run(impl_->model, impl_->options_of({request}, true), impl_->model.of_others());
  return run.describe(comm::launched_by_mpi() ? comm::launched_ranks()
                                              : static_cast<int>(impl_->model.options.ranks.value_or(1)));
}

void Model::release_weights() { impl_->model.release_weights(); }

}  // namespace zoetrope
