#include "pipeline/model_call.h"

#include <memory>
#include <utility>

#include "base/error.h"

namespace zoetrope::pipeline {
namespace {

thread_local const ModelCall* around = nullptr;

template <typename Result, typename... Arguments>
void mark(const ModelCall& call, std::function<Result(Arguments...)>& function) {
  if (!function) return;
  function = [&call, unmarked = std::move(function)](Arguments... arguments) -> Result {
    const ModelCall::Inside inside(&call);
    return unmarked(std::forward<Arguments>(arguments)...);
  };
}

class MarkedSink final : public FrameSink {
 public:
  MarkedSink(const ModelCall& call, std::unique_ptr<FrameSink> sink) : call_(call), sink_(std::move(sink)) {}
  ~MarkedSink() override {
    const ModelCall::Inside inside(&call_);
    sink_.reset();
  }
  void add_values(const float* rgb) override {
    const ModelCall::Inside inside(&call_);
    sink_->add_values(rgb);
  }
  void add_frame(const uint8_t* rgb) override {
    const ModelCall::Inside inside(&call_);
    sink_->add_frame(rgb);
  }
  void finish() override {
    const ModelCall::Inside inside(&call_);
    sink_->finish();
  }
  PixelRounding rounding() const override { return sink_->rounding(); }

 private:
  const ModelCall& call_;
  std::unique_ptr<FrameSink> sink_;
};

}  // namespace

ModelCall::ModelCall(const void* model) : model_(model), outer_(around) {
  for (const ModelCall* call = outer_; call != nullptr; call = call->outer_)
    if (call->model_ == model) fail("call: the model is in a call, whose callback or sink this is; call it afterwards");
}

Callbacks ModelCall::marked(Callbacks callbacks) const {
  auto& [note, load, step, latents, layer, preview, frames, cancelled] = callbacks;
  const auto mark_each = [this](auto&... functions) { (mark(*this, functions), ...); };
  mark_each(note, load, step, latents, layer, preview, frames, cancelled);
  return callbacks;
}

std::vector<OpenSink> ModelCall::marked(const std::vector<OpenSink>& sinks) const {
  std::vector<OpenSink> all;
  for (const OpenSink& open : sinks) {
    OpenSink& one = all.emplace_back();
    if (!open) continue;
    one = [this, open](const VideoFormat& format) -> std::unique_ptr<FrameSink> {
      const Inside inside(this);
      std::unique_ptr<FrameSink> sink = open(format);
      return sink ? std::make_unique<MarkedSink>(*this, std::move(sink)) : nullptr;
    };
  }
  return all;
}

const ModelCall* ModelCall::around_this_thread() { return around; }

ModelCall::Inside::Inside(const ModelCall* call) : before_(std::exchange(around, call)) {}
ModelCall::Inside::~Inside() { around = before_; }

}  // namespace zoetrope::pipeline
