// The public Model: runs one after another over one OpenModel.
#include "zoetrope/model.h"

#include <atomic>
#include <map>
#include <mutex>

#include "base/error.h"
#include "comm/launcher.h"
#include "pipeline/agreement.h"
#include "pipeline/run.h"

namespace zoetrope {

struct Model::Impl {
  explicit Impl(const pipeline::GenerateOptions& options) : model(options) {}

  pipeline::GenerateOptions options_of(const Request& request, bool frames_in_memory) const {
    pipeline::GenerateOptions options = model.options;
    static_cast<Request&>(options) = request;
    options.output.clear();
    options.frames_in_memory = frames_in_memory;
    return options;
  }

  // The run of one call, shared by its ranks in this process and made by the first of them. `call`: rank 0's place in
  // the job, and a number that it drew.
  using Call = std::pair<int, int64_t>;
  std::shared_ptr<pipeline::Run> shared_run(const Call& call, const pipeline::GenerateOptions& options) {
    const std::lock_guard lock(mutex);
    std::erase_if(runs, [](const auto& run) { return run.second.expired(); });
    std::shared_ptr<pipeline::Run> run = runs[call].lock();
    if (!run) runs[call] = run = std::make_shared<pipeline::Run>(model, options);
    return run;
  }

  pipeline::OpenModel model;
  std::mutex one_at_a_time;
  std::atomic<int64_t> next_call = 0;
  std::mutex mutex;
  std::map<Call, std::weak_ptr<pipeline::Run>> runs;
  std::unique_ptr<comm::Communicator> mpi_world;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::filesystem::path& folder, const ModelOptions& options) {
  if (folder.empty()) fail("Model::open: name a checkpoint folder in the diffusers layout");
  pipeline::GenerateOptions all;
  static_cast<ModelOptions&>(all) = options;
  all.model = folder.string();
  return Model(std::make_unique<Impl>(all));
}

Video Model::generate(const Request& request, const Callbacks& callbacks) { return generate(request, {}, callbacks); }

Video Model::generate(const Request& request, const OpenSink& sink, const Callbacks& callbacks) {
  const std::lock_guard lock(impl_->one_at_a_time);
  if (comm::launched_by_mpi()) {
    comm::RankOptions ranks;
    ranks.timeout_seconds = impl_->model.options.comm_timeout;
    if (!impl_->mpi_world) impl_->mpi_world = comm::mpi_world(ranks);
    return generate(*impl_->mpi_world->split(0, impl_->mpi_world->rank()), request, sink, callbacks);
  }
  return pipeline::Run(impl_->model, impl_->options_of(request, !sink)).run_on_threads(sink, callbacks);
}

Video Model::generate(comm::Communicator& world, const Request& request, const OpenSink& sink,
                      const Callbacks& callbacks) {
  // Rank 0 alone knows whether there is a sink, so all plan for frames in memory.
  pipeline::GenerateOptions options = impl_->options_of(request, true);
  pipeline::require_agreement(world, pipeline::describe_options(options).values());
  Impl::Call call{world.world_rank(0), impl_->next_call};
  if (world.rank() == 0) call.second = impl_->next_call++;
  world.broadcast(0, &call.second, sizeof call.second, "call");
  std::shared_ptr<pipeline::Run> run;
  std::string refusal;
  try {
    run = impl_->shared_run(call, options);
  } catch (const Error& error) {
    refusal = error.what();
  }
  pipeline::fail_together(world, refusal, "call");
  return run->run(world, sink, callbacks);
}

std::string Model::describe(const Request& request) const {
  const pipeline::Run run(impl_->model, impl_->options_of(request, true));
  return run.describe(comm::launched_by_mpi() ? comm::launched_ranks()
                                              : static_cast<int>(impl_->model.options.ranks.value_or(1)));
}

void Model::release_weights() { impl_->model.release_weights(); }

}  // namespace zoetrope
