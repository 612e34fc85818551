#include "server/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "pipeline/settings/lora_options.h"
#include "server/api_error.h"
#include "server/video_order.h"

namespace zoetrope::server {
namespace {

using pipeline::GenerateOptions;
using pipeline::OpenModel;
using pipeline::Run;

std::string loras_of(const GenerateOptions& o) {
  return fmt::format("{};{};{}", pipeline::loras_text(o.lora), pipeline::loras_text(o.lora_high),
                     pipeline::loras_text(o.lora_low));
}

// What a model is opened with: of an order, LoRA files are all that makes it another one.
GenerateOptions opening(const ServedModel& model, const GenerateOptions& order) {
  GenerateOptions options = model.options;
  options.lora = order.lora;
  options.lora_high = order.lora_high;
  options.lora_low = order.lora_low;
  return options;
}

}  // namespace

Models::Models(std::vector<ServedModel> models, RankJobs* ranks, int processes_here)
    : models_(std::move(models)), ranks_(ranks), processes_here_(processes_here) {
  for (const ServedModel& model : models_) {
    if (ranks != nullptr && model.options.ranks.value_or(ranks->size()) != ranks->size())
      fail("ranks={}: mpirun started {} ranks; leave it out", *model.options.ranks, ranks->size());
    to_plan_.push_back(std::make_unique<OpenModel>(model.options));
  }
  // Sharded weights gather over a communicator that split off from the jobs', which has been stopped.
  if (ranks != nullptr)
    ranks->on_failure = [this] {
      for (const Open& open : open_) open.model->experts.release_shards();
    };
}

pipeline::Forecast Models::forecast(const Run& run, const GenerateOptions& options) const {
  return run.forecast(ranks_ != nullptr ? ranks_->size() : static_cast<int>(options.ranks.value_or(1)),
                      processes_here_);
}

const ServedModel& Models::find(const std::string& name) const {
  if (name.empty()) return models_.front();
  std::vector<std::string> names;
  for (const ServedModel& model : models_) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  throw ApiError(404, "model_not_found",
                 fmt::format("model={}: is not served; there are: {}", name, fmt::join(names, ", ")), "model");
}

pipeline::Forecast Models::forecast(const ServedModel& model, const GenerateOptions& options) {
  const std::lock_guard lock(planning_);
  OpenModel& plain = *to_plan_[static_cast<size_t>(&model - models_.data())];
  if (loras_of(options) == loras_of(model.options)) return forecast(Run(plain, {options}), options);
  OpenModel changed(opening(model, options));
  return forecast(Run(changed, {options}), options);
}

Models::Open& Models::opened(const ServedModel& model, const GenerateOptions& options) {
  const std::string key = model.name + ";" + loras_of(options);
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return open.key == key; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    // Not while another thread plans: files that it reads would count as this model's as long as that is open.
    const std::lock_guard lock(planning_);
    open_.push_front({key, std::make_unique<OpenModel>(opening(model, options))});
    if (log) log(fmt::format("Model {} opened", model.name));
  }
  return open_.front();
}

void Models::close_oldest() {
  if (log)
    log(fmt::format("Model {} closed: memory does not hold it next to the one that is asked for",
                    open_.back().key.substr(0, open_.back().key.find(';'))));
  open_.pop_back();
  ::malloc_trim(0);  // what was freed in small pieces counts as used until it is given back
}

// A run on a model that is open then. With `ranks` collective: they open and close alike.
std::unique_ptr<Run> Models::prepared(const ServedModel& model, const GenerateOptions& options,
                                      comm::Communicator* ranks) {
  for (;;) {
    Open& open = opened(model, options);
    auto run = std::make_unique<Run>(*open.model, std::vector{options}, open.model->of_others());
    bool close = false;
    if (open_.size() > 1) {
      const pipeline::Forecast needs = forecast(*run, options);
      close = !needs.refusal.empty() || needs.short_of_memory;
    }
    if (ranks != nullptr) close = ranks->all_reduce_max(close ? 1 : 0) > 0;
    if (!close) return run;
    run.reset();
    if (open_.size() == 1) continue;
    close_oldest();
    // What was resident when it was opened counts as the program's own, and is gone: where it has no weights yet it is
    // opened again.
    if (!open.model->experts.known()) open_.pop_front();
  }
}

Video Models::run(const ServedModel& model, const GenerateOptions& options, const OpenSink& sink,
                  const Callbacks& callbacks, const Begins& begins) {
  if (ranks_ == nullptr) {
    const std::unique_ptr<Run> run = prepared(model, options, nullptr);
    begins(run->options());
    return std::move(run->run_on_threads({sink}, callbacks).front());
  }
  Video video;
  ranks_->run(text_of({model.name, options}), [&](comm::Communicator& ranks, const std::function<bool()>& stopped) {
    const std::unique_ptr<Run> run = prepared(model, options, &ranks);
    begins(run->options());
    Callbacks either = callbacks;
    either.cancelled = [&] { return stopped() || callbacks.cancelled(); };
    video = std::move(run->run(ranks, {sink}, either).front());
  });
  return video;
}

void Models::follow() {
  ranks_->follow([this](const std::string& order) {
    return [this, order](comm::Communicator& ranks, const std::function<bool()>& stopped) {
      const auto [model, options] = parse_video_order(order);
      Callbacks callbacks;
      callbacks.cancelled = stopped;
      prepared(find(model), options, &ranks)->run(ranks, {OpenSink()}, callbacks);
    };
  });
}

}  // namespace zoetrope::server
