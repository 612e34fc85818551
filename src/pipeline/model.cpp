// The public Model: runs one after another over one OpenModel.
#include "zoetrope/model.h"

#include <map>
#include <mutex>

#include "comm/launcher.h"
#include "pipeline/run.h"

namespace zoetrope {

struct Model::Impl {
  explicit Impl(const pipeline::GenerateOptions& options) : model(options) {}

  pipeline::GenerateOptions options_of(const Request& request, const OpenSink& sink) const {
    pipeline::GenerateOptions options = model.options;
    static_cast<Request&>(options) = request;
    options.output.clear();
    options.frames_in_memory = !sink;
    return options;
  }

  // The run that the n-th call of every rank of this process belongs to, made by the first of them.
  std::shared_ptr<pipeline::Run> shared_run(int rank, const Request& request, const OpenSink& sink) {
    const std::lock_guard lock(mutex);
    const int64_t call = calls[rank]++;
    std::erase_if(runs, [](const auto& run) { return run.second.expired(); });
    std::shared_ptr<pipeline::Run> run = runs[call].lock();
    if (!run) runs[call] = run = std::make_shared<pipeline::Run>(model, options_of(request, sink), sink);
    return run;
  }

  pipeline::OpenModel model;
  std::mutex one_at_a_time;
  std::mutex mutex;
  std::map<int, int64_t> calls;  // by rank
  std::map<int64_t, std::weak_ptr<pipeline::Run>> runs;
};

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Model Model::open(const std::filesystem::path& folder, const ModelOptions& options) {
  pipeline::GenerateOptions all;
  static_cast<ModelOptions&>(all) = options;
  all.model = folder.string();
  return Model(std::make_unique<Impl>(all));
}

Video Model::generate(const Request& request, const Callbacks& callbacks) { return generate(request, {}, callbacks); }

Video Model::generate(const Request& request, const OpenSink& sink, const Callbacks& callbacks) {
  const std::lock_guard lock(impl_->one_at_a_time);
  const pipeline::GenerateOptions options = impl_->options_of(request, sink);
  pipeline::Run run(impl_->model, options, sink);
  return pipeline::run_over_ranks(run, options, callbacks);
}

Video Model::generate(comm::Communicator& world, const Request& request, const OpenSink& sink,
                      const Callbacks& callbacks) {
  return impl_->shared_run(world.world_rank(world.rank()), request, sink)->run(world, callbacks);
}

std::string Model::describe(const Request& request) const {
  const pipeline::Run run(impl_->model, impl_->options_of(request, {}), {});
  return run.describe(static_cast<int>(impl_->model.options.ranks.value_or(1)));
}

void Model::release_weights() { impl_->model.release_weights(); }

}  // namespace zoetrope
