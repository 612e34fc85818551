#include "server/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <malloc.h>

#include <algorithm>

#include "pipeline/lora_options.h"
#include "server/api_error.h"

namespace zoetrope::server {
namespace {

using pipeline::GenerateOptions;
using pipeline::OpenModel;
using pipeline::Run;

std::string loras_of(const GenerateOptions& o) {
  return fmt::format("{};{};{}", pipeline::loras_text(o.lora), pipeline::loras_text(o.lora_high),
                     pipeline::loras_text(o.lora_low));
}

int ranks_of(const GenerateOptions& options) { return static_cast<int>(options.ranks.value_or(1)); }

}  // namespace

Models::Models(std::vector<ServedModel> models) : models_(std::move(models)) {
  for (const ServedModel& model : models_) to_plan_.push_back(std::make_unique<OpenModel>(model.options));
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
  if (loras_of(options) == loras_of(model.options)) return Run(plain, {options}).forecast(ranks_of(options));
  OpenModel changed(options);
  return Run(changed, {options}).forecast(ranks_of(options));
}

Models::Open& Models::opened(const ServedModel& model, const GenerateOptions& options) {
  const std::string key = model.name + ";" + loras_of(options);
  const auto found = std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return open.key == key; });
  if (found != open_.end()) {
    open_.splice(open_.begin(), open_, found);
  } else {
    // Not while another thread plans: files that it reads would count as this model's as long as that is open.
    const std::lock_guard lock(planning_);
    open_.push_front({key, std::make_unique<OpenModel>(options)});
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

Video Models::run(const ServedModel& model, const GenerateOptions& options, const OpenSink& sink,
                  const Callbacks& callbacks) {
  for (;;) {
    Open& open = opened(model, options);
    auto run = std::make_unique<Run>(*open.model, std::vector{options});
    if (open_.size() > 1) {
      const pipeline::Forecast forecast = run->forecast(ranks_of(options));
      if (!forecast.refusal.empty() || forecast.streams) {
        run.reset();
        close_oldest();
        // What was resident when it was opened counts as the program's own, and is gone: where it has no weights yet it
        // is opened again.
        if (!open.model->experts.known()) open_.pop_front();
        continue;
      }
    }
    return std::move(run->run_on_threads({sink}, callbacks).front());
  }
}

}  // namespace zoetrope::server
