// The modes of `zoetrope bench`, one file per case: the settings of each, and the section it adds to the report. They
// print nothing; progress is reported to a function of the caller.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "zoetrope/communicator.h"

#include "base/options.h"
#include "bench/report.h"

namespace zoetrope::bench {

// Called with what is being measured now; may be empty.
using Progress = std::function<void(const std::string&)>;

// The failures of a run.
struct Outcome {
  int wrong = 0;       // results beyond their tolerance; they are marked and not timed
  int unmeasured = 0;  // requested cases that were refused or failed
  std::string reason;  // of the first of them

  void add_unmeasured(const std::string& why) {
    if (unmeasured++ == 0) reason = why;
  }
};

struct PeakSettings {
  std::string threads = "1,all";
  std::string sizes = "32K,1M,16M,256M";
  double seconds = 0.2;
};
OptionSet describe(PeakSettings& settings);
Section bench_peak(const PeakSettings& settings, const Progress& progress);

struct KernelSettings {
  std::string shapes = "lengths,two_heads,head_dims,primes,cross,masks";
  std::string dtype = "all";
  std::string implementation = "all";
  std::string softmax = "online";
  std::string threads = "1,all";
  int64_t repeat = 0;
  double seconds = 0;
  double window = 0.02;
};
OptionSet describe(KernelSettings& settings);
Section bench_kernel(const KernelSettings& settings, const Progress& progress, Outcome& outcome);

struct ProductSettings {
  std::string shapes;  // empty: the layers of a 1.3B block
  std::string dtype = "all";
  std::string threads = "1,all";
  int64_t repeat = 0;
  double window = 0.02;
};
OptionSet describe(ProductSettings& settings);
Section bench_product(const ProductSettings& settings, const Progress& progress, Outcome& outcome);

struct NumericsSettings {
  std::string tokens = "512,1024,4096,16384,32760";
  int64_t head_dim = 128;
  int64_t rows = 128;
  std::string dtype = "all";
};
OptionSet describe(NumericsSettings& settings);
Section bench_numerics(const NumericsSettings& settings, const Progress& progress, Outcome& outcome);

// Longer than in a run, because ranks wait for one that measures something alone.
inline constexpr double kCommTimeout = 3600;

struct CommSettings {
  std::string ranks = "2,4";
  std::string sizes = "64K,256K,1M,4M,16M,64M";
  int64_t repeat = 5;
  double comm_timeout = kCommTimeout;
};
OptionSet describe(CommSettings& settings);
// Over the ranks of `world`; if null, over threads of this process.
Section bench_comm(const CommSettings& settings, comm::Communicator* world, const Progress& progress);

struct AttentionSettings {
  std::string strategies = "all";
  std::string batch = "1,2,4,8";
  int64_t tokens = 4096;
  int64_t heads = 8;
  int64_t head_dim = 128;
  std::string dtype = "bf16";
  int64_t ranks = 4;
  int64_t threads = 1;
  std::string kernel;
  int64_t repeat = 3;
  double comm_timeout = kCommTimeout;
  std::string traces;
};
OptionSet describe(AttentionSettings& settings);
Section bench_attention(const AttentionSettings& settings, comm::Communicator* world, const Progress& progress,
                        Outcome& outcome);

// What `bench model`, `vae`, `text`, `load` and `shared` have in common.
struct PublishedSettings {
  std::string model = "wan2.1_t2v_1.3b";
  std::string weights = "random";
  std::optional<int64_t> weights_seed = std::nullopt;  // of random ones; unset: 0
  int64_t layers = 0;
  std::string dtype = "bf16";
  int64_t threads = 0;
  int64_t repeat = 0;
  std::string transformer{};  // its file; empty: the model's
};

struct ModelSettings {
  PublishedSettings published;
  int64_t height = 480;
  int64_t width = 832;
  std::string num_frames = "1,17";
  std::string attention_dtype = "as_computed";
};
OptionSet describe(ModelSettings& settings);
// Two sections: the forward, and its operations.
std::vector<Section> bench_model(const ModelSettings& settings, const Progress& progress, Outcome& outcome);

struct VaeSettings {
  PublishedSettings published;
  int64_t height = 480;
  int64_t width = 832;
  std::string num_frames = "5";
  std::string convolution = "auto";
};
OptionSet describe(VaeSettings& settings);
std::vector<Section> bench_vae(const VaeSettings& settings, const Progress& progress, Outcome& outcome);

struct TextSettings {
  PublishedSettings published;
  std::string tokens = "64";
};
OptionSet describe(TextSettings& settings);
std::vector<Section> bench_text(const TextSettings& settings, const Progress& progress, Outcome& outcome);

struct LoadSettings {
  PublishedSettings published;
  std::string weight_cache;
};
OptionSet describe(LoadSettings& settings);
std::vector<Section> bench_load(const LoadSettings& settings, const Progress& progress, Outcome& outcome);

struct SharedSettings {
  PublishedSettings published{.layers = 2};
  std::string busy = "1,2";
  double seconds = 0.2;
  int64_t height = 256;
  int64_t width = 160;
  int64_t num_frames = 9;
};
OptionSet describe(SharedSettings& settings);
std::vector<Section> bench_shared(const SharedSettings& settings, const Progress& progress, Outcome& outcome);

struct PipelineSettings {
  PublishedSettings published{.repeat = 1};
  std::string strategies = "all";
  std::string batch = "1,2,4,8";
  int64_t height = 256;
  int64_t width = 160;
  int64_t num_frames = 9;
  std::optional<int64_t> num_inference_steps;  // unset: four, or those of the recipe
  std::string recipe = "none";
  std::string text_encoder_dtype = "float32";
  std::string vae_dtype = "float32";
  int64_t ranks = 4;
  double comm_timeout = kCommTimeout;
  std::string traces;
};
OptionSet describe(PipelineSettings& settings);
// Over the ranks of `world`; if null, over threads of this process. Two sections: the runs, and the phases of each.
// `cancelled` as in Callbacks.
std::vector<Section> bench_pipeline(const PipelineSettings& settings, comm::Communicator* world,
                                    const Progress& progress, const std::function<bool()>& cancelled, Outcome& outcome);

}  // namespace zoetrope::bench
