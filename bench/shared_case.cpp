// `bench shared`: a forward and a decoding next to processes that use the cores as well.
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <functional>
#include <system_error>

#include "base/available_cores.h"
#include "base/error.h"
#include "bench/cases.h"
#include "bench/forward_inputs.h"
#include "bench/model_check.h"
#include "bench/peak.h"
#include "bench/published.h"
#include "bench/statistics.h"
#include "bench/words.h"
#include "models/wan/vae/vae.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::bench {
namespace {

constexpr int kMostFrames = 100000, kMostBusy = 1000;

constexpr const char* kNote =
    "A forward of the transformer and a decoding of the VAE, alone (busy 0) and next to 'busy' processes that compute "
    "without end. 'slower' is the median time relative to that of the passes that ran alone. 'fair' is how much slower "
    "a pass would be if every thread, its own and the others', got the same share of the cores: (threads + busy) / "
    "cores, where there are more threads than cores. 'of fair' is 'slower' relative to 'fair', 'worst' the same of the "
    "longest repeat. Passes alone and next to others alternate, and each repeat is the mean of the passes that fit "
    "into 'seconds'. Before timing, both models were compared with float64, as in `bench model` and `bench vae`.";

// Does only what is safe in the child of a process with threads.
[[noreturn]] void compute(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  for (volatile uint64_t count = 0;;) count = count + 1;
}

// Processes that compute without end during the object's lifetime; they end with this process, however it ends.
class BusyProcesses {
 public:
  explicit BusyProcesses(int count);
  ~BusyProcesses();
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;

 private:
  void end();

  std::vector<pid_t> processes_;
};

BusyProcesses::BusyProcesses(int count) {
  const pid_t parent = getpid();
  for (int i = 0; i < count; ++i) {
    const pid_t process = fork();
    if (process == 0) compute(parent);
    if (process < 0) {
      const int error = errno;
      end();
      fail("the system starts {} of {} busy processes: {}", i, count, std::generic_category().message(error));
    }
    processes_.push_back(process);
  }
}

BusyProcesses::~BusyProcesses() { end(); }

void BusyProcesses::end() {
  for (const pid_t process : processes_) kill(process, SIGKILL);
  for (const pid_t process : processes_) {
    while (waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
}

class SharedBench : private ModelCase {
 public:
  SharedBench(const SharedSettings& settings, const Progress& progress, Outcome& outcome)
      : ModelCase("shared", settings.published, progress, outcome), settings_(settings) {
    section_.name = "shared";
    section_.title = "A forward and a decoding on a machine that others use";
    section_.note = kNote;
    section_.table.columns = {{"part", "part"},
                              {"height", "height"},
                              {"width", "width"},
                              {"num_frames", "frames"},
                              {"dtype", "dtype"},
                              {"threads", "threads"},
                              {"busy", "busy"},
                              {"seconds_min", "least", Format::kSeconds},
                              {"seconds_median", "median", Format::kSeconds},
                              {"seconds_max", "most", Format::kSeconds},
                              {"slower", "slower", Format::kPercent},
                              {"fair", "fair", Format::kPercent},
                              {"of_fair", "of fair", Format::kPercent},
                              {"of_fair_max", "worst", Format::kPercent},
                              {"rel_l2", "rel L2", Format::kScientific, true},
                              {"tolerance", "tolerance", Format::kScientific, true},
                              {"note", ""}};
    section_.bar_plots.push_back({"Median time over the fair share's", "", true, {}, {}});
  }

  Section run() {
    busy_ = {0};
    const std::vector<int> others = parse_counts("busy", settings_.busy, available_threads(), kMostBusy);
    busy_.insert(busy_.end(), others.begin(), others.end());
    for (const int count : others) section_.bar_plots[0].groups.push_back(fmt::format("next to {}", count));
    latent_ = model_.latent_of(settings_.height, settings_.width, settings_.num_frames);
    for (const std::string& dtype : choose_dtypes("dtype", settings_.published.dtype)) {
      run_forward(dtype);
      run_decode(dtype);
    }
    return std::move(section_);
  }

 private:
  using Repeats = std::vector<std::vector<double>>;  // [busy][repeat], seconds per pass

  void run_forward(const std::string& dtype) {
    const auto source = model_.source(Part::kTransformer, threads_);
    const auto weights = wan::TransformerWeights::load(model_.transformer(), std::make_shared<io::Weights>(source),
                                                       pipeline::dtype_of(dtype));
    say("forward " + dtype + ": checking");
    const Verdict verdict = check_transformer(weights, source, stream_);
    with_forward(
        weights, {.latent = latent_, .text_rows = kRunTextRows, .image_rows = kRunImageRows}, {}, stream_,
        [&](const std::function<void()>& forward, const TensorView&) { measure("forward", dtype, verdict, forward); });
  }

  void run_decode(const std::string& dtype) {
    const DType type = pipeline::dtype_of(dtype);
    const auto source = model_.source(Part::kVae, threads_);
    const auto weights =
        std::make_shared<wan::VaeWeights>(model_.vae(), source, wan::VaeUse{wan::VaeParts::kDecoder, type});
    say("decode " + dtype + ": checking");
    const Verdict verdict = check_vae_decoder(weights, source, type, stream_);
    const Tensor latents(DType::kF32, {model_.vae().z_dim, latent_[0], latent_[1], latent_[2]});
    fill_normal(latents, 1);
    wan::VaeDecoder decoder(weights);
    measure("decode", dtype, verdict, [&] { decoder.decode(stream_, latents, [](int64_t, const TensorView&) {}); });
  }

  double time(const std::function<void()>& pass) const {
    const double begin = wall_seconds();
    int64_t passes = 0;
    double taken = 0;
    do {
      pass();
      ++passes;
      taken = wall_seconds() - begin;
    } while (taken < settings_.seconds);
    return taken / static_cast<double>(passes);
  }

  void measure(const char* part, const std::string& dtype, const Verdict& verdict, const std::function<void()>& pass) {
    Repeats seconds(busy_.size());
    if (!verdict.passed()) ++outcome_.wrong;
    const int64_t repeats = settings_.published.repeat > 0 ? settings_.published.repeat : kRepeats;
    for (int64_t repeat = 0; verdict.passed() && repeat < repeats; ++repeat) {
      for (size_t i = 0; i < busy_.size(); ++i) {
        say(fmt::format("{} {}: repeat {} of {} next to {}", part, dtype, repeat + 1, repeats, busy_[i]));
        const BusyProcesses others(busy_[i]);
        pass();  // not timed: the other processes have started by then
        seconds[i].push_back(time(pass));
      }
    }
    for (size_t i = 0; i < busy_.size(); ++i) add(part, dtype, verdict, busy_[i], seconds[i], seconds[0]);
  }

  void add(const char* part, const std::string& dtype, const Verdict& verdict, int busy,
           const std::vector<double>& seconds, const std::vector<double>& alone) {
    Table& table = section_.table;
    table.begin_row(
        {part, settings_.height, settings_.width, settings_.num_frames, dtype, int64_t{threads_}, int64_t{busy}});
    table.set("rel_l2", verdict.relative_l2);
    table.set("tolerance", verdict.tolerance);
    if (!verdict.passed()) table.set("note", verdict.note());
    if (seconds.empty()) return;
    const double fair = std::max(1.0, static_cast<double>(threads_ + busy) / available_threads()) /
                        std::max(1.0, static_cast<double>(threads_) / available_threads());
    const double slower = median(seconds) / median(alone), most = maximum(seconds) / median(alone);
    table.set("seconds_min", minimum(seconds));
    table.set("seconds_median", median(seconds));
    table.set("seconds_max", maximum(seconds));
    table.set("slower", slower);
    table.set("fair", fair);
    table.set("of_fair", slower / fair);
    table.set("of_fair_max", most / fair);
    if (busy > 0) plot(fmt::format("{} {}", part, dtype), slower / fair);
  }

  void plot(const std::string& name, double of_fair) {
    std::vector<BarPlot::Series>& series = section_.bar_plots[0].series;
    if (series.empty() || series.back().name != name) series.push_back({name, {}});
    series.back().values.push_back(of_fair);
  }

  static constexpr int64_t kRepeats = 10;

  const SharedSettings& settings_;
  std::vector<int> busy_;
  Shape latent_;  // frames, rows, columns
  Section section_;
};

}  // namespace

OptionSet describe(SharedSettings& settings) {
  OptionSet options = describe_published(settings.published, "timed repeats; 0: ten");
  options
      .text("busy", settings.busy,
            "numbers of other processes that compute at the same time, one row each; 0 is always measured")
      .number("seconds", settings.seconds, {0, 3600}, "duration of a repeat, at least one pass")
      .integer("height", settings.height, {1, 1 << 16}, "pixels; a multiple of 16")
      .integer("width", settings.width, {1, 1 << 16}, "pixels; a multiple of 16")
      .integer("num_frames", settings.num_frames, {1, kMostFrames}, "frames of the video, 4k + 1");
  return options;
}

std::vector<Section> bench_shared(const SharedSettings& settings, const Progress& progress, Outcome& outcome) {
  return {SharedBench(settings, progress, outcome).run()};
}

}  // namespace zoetrope::bench
