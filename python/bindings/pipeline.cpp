// A model and its runs. The engine works on a thread of its own, without the interpreter's lock, while the thread that
// called looks for signals: so Ctrl-C ends a run at its next layer, wherever it was started.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "zoetrope/model.h"

#include "base/error.h"
#include "base/ticking_wait.h"
#include "io/weights/safetensors.h"
#include "pipeline/model_call.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/merged_loras.h"
#include "pipeline/planning/planned_run.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/run_settings.h"
#include "python/bindings/bindings.h"

namespace zoetrope::python {
namespace {

using pipeline::GenerateOptions;

constexpr std::chrono::milliseconds kBetweenSignals{50};
constexpr const char* kWhenOpened = "from_pretrained";
constexpr const char* kWhenCalled = "call";

// Functions of Python that a run calls; None: not.
struct Hooks {
  nb::object note;     // (line)
  nb::object step;     // (done, total, seconds)
  nb::object latents;  // (step, timestep, latents) -> None, or other latents to go on with
};

// Runs of this process. Where the interpreter ends, those of daemon threads end first: afterwards nothing can take its
// lock, and a thread that tries is torn down with whatever it holds.
class Runs {
 public:
  // While it runs, with the interpreter's lock at both ends.
  class Run {
   public:
    Run() {
      if (ending_) fail("call: the program is ending");
      change(1);
    }
    ~Run() { change(-1); }
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;
  };

  static bool ending() { return ending_; }
  // Ctrl-C ends the wait, too.
  static void end() {
    if (::getpid() != process_) return;  // a child of fork() has none of the threads
    ending_ = true;
    const nb::gil_scoped_release others_run;
    std::unique_lock lock(mutex_);
    wait_ticking(
        lock, ended_, kBetweenSignals, [] { return running_ == 0; },
        [] {
          const nb::gil_scoped_acquire interpreter;
          if (PyErr_CheckSignals() != 0) nb::raise_python_error();
        });
  }

 private:
  static void change(int by) {
    const std::lock_guard lock(mutex_);
    running_ += by;
    if (running_ == 0) ended_.notify_all();
  }
  static inline std::mutex mutex_;
  static inline std::condition_variable ended_;
  static inline int running_ = 0;
  static inline std::atomic<bool> ending_ = false;
  static inline const pid_t process_ = ::getpid();
};

// "ValueError: the sentence", for the other processes of a job.
std::string words_of(const nb::python_error& error) {
  std::string words = nb::cast<std::string>(error.type().attr("__name__"));
  try {
    const nb::str shown(error.value());
    const char* const text = shown.c_str();
    if (text == nullptr) PyErr_Clear();  // no UTF-8
    else words += fmt::format(": {}", text);
  } catch (const nb::python_error&) {  // of its __str__
  }
  return words;
}

// What ends a run from Python: a signal's exception, or one of a hook. Holds it until the run has ended.
class Ending {
 public:
  // Where a hook of another run calls, this run ends with that.
  Ending() : outer_(in_hook_of) {}
  bool ended() const { return ended_ || Runs::ending() || (outer_ != nullptr && outer_->ended()); }
  // Calls a function of Python on any thread. What it raises ends the run.
  template <typename Function>
  void call(Function&& function) {
    const nb::gil_scoped_acquire interpreter;
    const Ending* const before = std::exchange(in_hook_of, this);
    try {
      function();
      in_hook_of = before;
    } catch (const nb::python_error& error) {
      in_hook_of = before;
      keep_current();
      fail("a callback raised {}", words_of(error));
    } catch (...) {
      in_hook_of = before;
      keep_current();
      throw Error("a callback raised an exception");
    }
  }
  // With the interpreter's lock, on the thread that called.
  void look_for_signals() {
    if (ended_ || PyErr_CheckSignals() == 0) return;
    try {
      nb::raise_python_error();
    } catch (...) {
      keep_current();
    }
  }
  // With the interpreter's lock, after the run.
  void rethrow() {
    if (raised_) std::rethrow_exception(std::exchange(raised_, nullptr));
  }

 private:
  void keep_current() {
    if (!raised_) raised_ = std::current_exception();
    ended_ = true;
  }
  static inline thread_local const Ending* in_hook_of = nullptr;
  const Ending* const outer_;
  std::atomic<bool> ended_ = false;
  std::exception_ptr raised_;  // guarded by the interpreter's lock
};

// Returns work(), which runs on another thread without the interpreter's lock. Throws what ended it.
template <typename Work>
void run_beside_signals(Ending& ending, Work&& work) {
  const Runs::Run run;
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr failure;
  std::thread worker([&, around = pipeline::ModelCall::around_this_thread()] {
    const pipeline::ModelCall::Inside inside(around);
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  {
    const nb::gil_scoped_release others_run;
    std::unique_lock lock(mutex);
    wait_ticking(
        lock, changed, kBetweenSignals, [&] { return done; },
        [&] {
          const nb::gil_scoped_acquire interpreter;
          ending.look_for_signals();
        });
    lock.unlock();
    worker.join();
  }
  ending.rethrow();
  if (failure) std::rethrow_exception(failure);
}

// The values of all frames, as they come.
struct Frames {
  static constexpr int64_t kValueBytes = sizeof(float);
  std::vector<float> values;
  size_t height = 0, width = 0;

  nb::object array() {
    const size_t count = values.empty() ? 0 : values.size() / (height * width * 3);
    return numpy_array(std::move(values), {count, height, width, 3});
  }
};

class FramesSink final : public FrameSink {
 public:
  FramesSink(Frames& frames, const VideoFormat& format) : frames_(frames) {
    frames.height = static_cast<size_t>(format.height);
    frames.width = static_cast<size_t>(format.width);
    frames.values.reserve(static_cast<size_t>(format.frames) * frames.height * frames.width * 3);
  }
  void add_values(const float* rgb) override {
    frames_.values.insert(frames_.values.end(), rgb, rgb + frames_.height * frames_.width * 3);
  }
  void add_frame(const uint8_t*) override {}
  void finish() override {}

 private:
  Frames& frames_;
};

// Hands a copy of the latents out, and takes back what the function returns in their place.
void change_latents(const nb::object& function, int64_t step, double timestep, const TensorView& latents) {
  Tensor copy = Tensor::uninitialized(DType::kF32, latents.shape());
  std::memcpy(copy.data<float>(), latents.raw(), latents.bytes());
  const nb::object returned = function(step, timestep, numpy_array(std::move(copy)));
  if (returned.is_none()) return;
  const auto array = read_array("latents of the callback", returned);
  const TensorView changed = view_of("latents of the callback", array);
  if (!(changed.shape() == latents.shape()) || changed.dtype() != DType::kF32 || !changed.contiguous()) {
    fail("latents of the callback: {} {}, but must be F32 {} and contiguous", dtype_name(changed.dtype()),
         changed.shape().to_string(), latents.shape().to_string());
  }
  std::memcpy(latents.raw(), changed.raw(), latents.bytes());
}

Callbacks callbacks_of(const Hooks& hooks, Ending& ending) {
  Callbacks callbacks;
  callbacks.cancelled = [&] { return ending.ended(); };
  if (!hooks.note.is_none()) callbacks.note = [&](const std::string& line) { ending.call([&] { hooks.note(line); }); };
  if (!hooks.step.is_none()) {
    callbacks.step = [&](int64_t done, int64_t total, double seconds) {
      ending.call([&] { hooks.step(done, total, seconds); });
    };
  }
  if (!hooks.latents.is_none()) {
    callbacks.latents = [&](int64_t step, double timestep, const TensorView& latents) {
      ending.call([&] { change_latents(hooks.latents, step, timestep, latents); });
    };
  }
  return callbacks;
}

nb::dict dict_of(Video& video, Frames& frames, bool decoded) {
  nb::dict result;
  result["frames"] = decoded ? frames.array() : nb::none();
  result["latents"] = numpy_array(std::move(video.latents));
  result["seed"] = video.seed;
  result["layout"] = video.layout;
  result["summary"] = video.summary;
  result["timing"] = video.timing;
  result["denoise_seconds"] = video.denoise_seconds;
  return result;
}

// The first key that says something else about the model.
void check_same_model(const GenerateOptions& opened, const GenerateOptions& asked) {
  GenerateOptions a, b;
  static_cast<ModelOptions&>(a) = opened;
  static_cast<ModelOptions&>(b) = asked;
  const auto before = pipeline::describe_options(a).settings(), now = pipeline::describe_options(b).settings();
  for (size_t i = 0; i < now.size(); ++i) {
    if (before[i] != now[i]) fail("{}: is fixed when the model is opened; give it to {}", now[i].first, kWhenOpened);
  }
  if (opened.model != asked.model) fail("model: is fixed when the model is opened; open another with {}", kWhenOpened);
}

// Keys of files and of series of videos, which are the program's.
void check_no_files(const GenerateOptions& o) {
  const GenerateOptions unset;
  for (const auto& [key, given, instead] :
       {std::tuple("prompts", o.prompts != unset.prompts, "give prompt a list"),
        std::tuple("num_videos", o.num_videos != unset.num_videos, "call with num_videos_per_prompt"),
        std::tuple("batch_size", o.batch_size != unset.batch_size, "call with batch_size"),
        std::tuple("output", o.output != unset.output, "frames are returned; write them as you like"),
        std::tuple("grid", !o.grid.empty(), "frames are returned; put them together as you like"),
        std::tuple("codec", o.codec != unset.codec, "frames are returned; write them as you like"),
        std::tuple("crf", o.crf.has_value(), "frames are returned; write them as you like"),
        std::tuple("preview", o.preview.has_value(), "callback_on_step_end is given the latents of each step"),
        std::tuple("per_device_batch_size", o.videos_per_device > 1, "call with num_videos_per_prompt"),
        std::tuple("dump", !o.dump.empty(), "latents and frames are returned")}) {
    if (given) fail("{}: is a key of the program alone; {}", key, instead);
  }
}

class Pipeline {
 public:
  Pipeline(const std::string& folder, const Keys& keys) {
    OptionSet set = pipeline::describe_options(options_);
    set.set("model", folder, kWhenOpened);
    set_keys(set, keys, kWhenOpened);
    note_ = pipeline::ignored_note(set);
    const nb::gil_scoped_release others_run;
    with_origins(set, [&] {
      check_no_files(options_);
      model_ = std::make_shared<Model>(Model::open(options_.model, options_, options_));
    });
  }

  const std::string& note() const { return note_; }

  nb::list generate(const std::vector<Keys>& videos, bool decode, const nb::object& note, const nb::object& step,
                    const nb::object& latents) {
    const std::shared_ptr<Model> model = open_model();
    if (videos.empty()) fail("call: there is no video to make");
    std::vector<Request> requests;
    std::vector<Frames> frames(videos.size());
    std::vector<OpenSink> sinks;
    for (size_t i = 0; i < videos.size(); ++i) {
      requests.push_back(options_of(videos[i]));
      requests.back().decode = decode;
      requests.back().sink_value_bytes = decode ? Frames::kValueBytes : 0;
      sinks.emplace_back(
          [&frames = frames[i]](const VideoFormat& format) { return std::make_unique<FramesSink>(frames, format); });
    }
    const Hooks hooks{note, step, latents};
    Ending ending;
    std::vector<Video> made;
    GenerateOptions origins;
    const OptionSet set = set_of_call(videos.front(), origins);
    with_origins(set, [&] {
      run_beside_signals(ending, [&] { made = model->generate(requests, sinks, callbacks_of(hooks, ending)); });
    });
    nb::list results;
    for (size_t i = 0; i < made.size(); ++i) results.append(dict_of(made[i], frames[i], decode));
    return results;
  }

  // Of one video, [1, C, T, h, w] for each segment. Reads configs, and the files that its size follows.
  std::vector<std::vector<int64_t>> noise_shapes(const Keys& keys) const {
    open_model();
    GenerateOptions options = options_of(keys);
    options.guidance_scale = options_.guidance_scale;  // as opened: it changes no shape
    options.guidance_scale_2 = options_.guidance_scale_2;
    if (!options.model.empty()) options.model = pipeline::model_or_config(options.model).string();
    const nb::gil_scoped_release others_run;
    const pipeline::RunPlan plan = pipeline::PlannedRun(options).plan;
    const Shape shape = plan.latents();
    std::vector<int64_t> extents;
    for (int axis = 0; axis < shape.rank(); ++axis) extents.push_back(shape[axis]);
    return std::vector(static_cast<size_t>(plan.segments.count), extents);
  }

  // See ignored_note().
  std::string ignored(const Keys& keys) const {
    GenerateOptions options;
    return pipeline::ignored_note(set_of_call(keys, options));
  }

  std::string describe(const Keys& keys) const {
    const std::shared_ptr<Model> model = open_model();
    Request request = options_of(keys);
    request.sink_value_bytes = Frames::kValueBytes;
    const nb::gil_scoped_release others_run;
    return model->describe(request);
  }

  void release_weights() {
    const std::shared_ptr<Model> model = open_model();
    const nb::gil_scoped_release others_run;
    model->release_weights();
  }

  // A run that goes on keeps the model until it ends.
  void close() {
    std::shared_ptr<Model> model = std::exchange(model_, nullptr);
    const nb::gil_scoped_release others_run;
    model.reset();
  }

 private:
  std::shared_ptr<Model> open_model() const {
    if (!model_) fail("the pipeline is closed; open the model again with {}", kWhenOpened);
    return model_;
  }

  // `options` become those of the model with what the keys of a call say; they must outlive the set.
  OptionSet set_of_call(const Keys& keys, GenerateOptions& options) const {
    options = options_;
    OptionSet set = pipeline::describe_options(options);
    set_keys(set, keys, kWhenCalled);
    return set;
  }

  GenerateOptions options_of(const Keys& keys) const {
    GenerateOptions options;
    set_of_call(keys, options);
    check_same_model(options_, options);
    check_no_files(options);
    return options;
  }

  GenerateOptions options_;
  std::string note_;
  std::shared_ptr<Model> model_;  // guarded by the interpreter's lock
};

void write_png(const std::string& path, const nb::object& pixels) {
  const auto array = read_array("image", pixels);
  const TensorView view = view_of("image", array);
  if (view.rank() != 3 || view.extent(2) != 3 || view.dtype() != DType::kU8 || !view.contiguous() || view.empty())
    fail("image: {} {}, but must be U8 [height, width, 3]", dtype_name(view.dtype()), view.shape().to_string());
  VideoFormat format;
  format.height = static_cast<int>(view.extent(0));
  format.width = static_cast<int>(view.extent(1));
  format.frames = 1;
  const std::unique_ptr<FrameSink> file = video_file(path)(format);
  file->add_frame(view.data<uint8_t>());
  file->finish();
}

void write_latents(const std::string& path, const std::vector<nb::object>& latents) {
  std::vector<decltype(read_array("", nb::object()))> arrays;
  io::SafetensorsWriter writer;
  for (size_t segment = 0; segment < latents.size(); ++segment) {
    const TensorView view = view_of("latents", arrays.emplace_back(read_array("latents", latents[segment])));
    if (view.dtype() != DType::kF32) fail("latents: {}, but must be F32", dtype_name(view.dtype()));
    writer.add(segment == 0 ? "latents.init" : fmt::format("latents.init.{}", segment), view);
  }
  writer.write(path);
}

}  // namespace

void bind_pipeline(nb::module_& module) {
  nb::class_<Pipeline>(module, "Pipeline", "An opened model. What zoetrope.WanPipeline calls.")
      .def(nb::init<const std::string&, const Keys&>(), nb::arg("folder"), nb::arg("keys"))
      .def_prop_ro("note", &Pipeline::note, "The keys of other programs that were given and change nothing.")
      .def("generate", &Pipeline::generate, nb::arg("videos"), nb::arg("decode"), nb::arg("note").none(),
           nb::arg("step").none(), nb::arg("latents").none(),
           "Makes the videos of these keys together; a dict for each. The hooks are None or functions: note(line), "
           "step(done, total, seconds), latents(step, timestep, latents), whose result takes the latents' place.")
      .def("noise_shapes", &Pipeline::noise_shapes, nb::arg("keys"),
           "[1, C, T, h, w] for each segment of the video of these keys.")
      .def("ignored", &Pipeline::ignored, nb::arg("keys"), "The same of the keys of a call.")
      .def("describe", &Pipeline::describe, nb::arg("keys"), "What the run would be, a line per fact.")
      .def("release_weights", &Pipeline::release_weights, "Frees the weights that keep_weights kept.")
      .def("close", &Pipeline::close, "Frees the model. Later calls throw Error.");
  module.def("end_runs", &Runs::end, "Before the interpreter ends: ends the runs of daemon threads.");
  module.def("warnings_in", pipeline::warnings_in, nb::arg("note"), "The warnings among the lines of a run's note.");
  module.def("write_png", write_png, nb::arg("path"), nb::arg("pixels"), "Pixels, uint8 [height, width, 3].");
  module.def("write_latents", write_latents, nb::arg("path"), nb::arg("latents"),
             "A file that the key latents takes, from float32 [1, C, T, h, w] for each segment.");
}

}  // namespace zoetrope::python
