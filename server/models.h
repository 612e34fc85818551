// The models of a server: each opened once to plan with, which reads no weights, and on demand to run, with the weights
// that keep_weights keeps. The one that was used least recently is closed where memory does not hold all.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pipeline/run.h"
#include "server/rank_jobs.h"
#include "server/serve.h"

namespace zoetrope::server {

class Models {
 public:
  // Throws Error where one is not a model. `ranks`, which must outlive this: of a server that was started with mpirun;
  // null: ranks are threads. `processes_here`: of the ranks that share the memory of a host.
  explicit Models(std::vector<ServedModel> models, RankJobs* ranks = nullptr, int processes_here = 1);

  const std::vector<ServedModel>& all() const { return models_; }
  // The first for an empty name. Throws ApiError for one that is not served.
  const ServedModel& find(const std::string& name) const;

  // What a run of `model` with these options needs. Checks all of them, and reads its pictures and videos; throws
  // Error. On any thread.
  pipeline::Forecast forecast(const ServedModel& model, const pipeline::GenerateOptions& options);

  // One video, on rank 0. From one thread. `begins` is called before it begins here, with its options.
  using Begins = std::function<void(const pipeline::GenerateOptions& options)>;
  Video run(const ServedModel& model, const pipeline::GenerateOptions& options, const OpenSink& sink,
            const Callbacks& callbacks, const Begins& begins);
  // On the other ranks: their parts of the videos, until rank 0 ends.
  void follow();
  // Why no further video can be made, as RankJobs::lost().
  std::string lost() const { return ranks_ == nullptr ? "" : ranks_->lost(); }

  // Names of those that are open to run, with a line for each that is opened or closed into `log`.
  std::function<void(const std::string&)> log;

 private:
  // LoRA files are merged into the weights, so other ones are another model.
  struct Open {
    std::string key;
    std::unique_ptr<pipeline::OpenModel> model;
  };
  pipeline::Forecast forecast(const pipeline::Run& run, const pipeline::GenerateOptions& options) const;
  std::unique_ptr<pipeline::Run> prepared(const ServedModel& model, const pipeline::GenerateOptions& options,
                                          comm::Communicator* ranks);
  Open& opened(const ServedModel& model, const pipeline::GenerateOptions& options);
  void close_oldest();

  const std::vector<ServedModel> models_;
  RankJobs* const ranks_;
  const int processes_here_;
  std::mutex planning_;
  std::vector<std::unique_ptr<pipeline::OpenModel>> to_plan_;  // as models_
  std::list<Open> open_;                                       // the last used first
};

}  // namespace zoetrope::server
