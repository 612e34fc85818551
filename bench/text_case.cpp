// `bench text`: one prompt through the text encoder, which reads its weights in every pass and does not keep them.
#include "base/error.h"
#include "bench/cases.h"
#include "bench/machine.h"
#include "bench/model_check.h"
#include "bench/statistics.h"
#include "bench/whole_model.h"
#include "bench/words.h"
#include "models/encoders/cost.h"
#include "models/encoders/tensor_tables.h"
#include "models/encoders/umt5.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::bench {
namespace {

constexpr int kMostTokens = 512;
constexpr size_t kCopyBytes = size_t{256} << 20;  // far larger than any cache
constexpr double kCopySeconds = 0.3;

constexpr const char* kNote =
    "One prompt of the given number of ids, the closing one included. 'bound' is the larger of two times: reading the "
    "layers' bytes at the rate at which all threads copy memory (memcpy, measured before), and the operations at the "
    "peak. Random weights (weights=random) are generated, not read, and have no bound. 'resident' is the most memory "
    "of the process, file pages included. Before timing, the embedding, the first and the last layer and the last norm "
    "were compared with float64.";

// What a pass must read of the files: every layer, and the embedding's rows for the ids.
int64_t stored_bytes(const io::Checkpoint& files, const encoders::TextEncoderConfig& config, int64_t ids) {
  int64_t bytes = 0;
  const io::TensorTable table = encoders::text_encoder_tensors(config);
  for (const io::TensorSpec& spec : table) {
    const auto stored = static_cast<int64_t>(files.info(io::stored_name(files, spec)).bytes);
    bytes += &spec == &table.front() ? stored / config.vocab_size * ids : stored;  // the embedding is the first
  }
  return bytes;
}

class TextBench : private WholeModel {
 public:
  TextBench(const TextSettings& settings, const Progress& progress, Outcome& outcome)
      : WholeModel("text", settings.published, progress, outcome,
                   {{"tokens", "tokens"},
                    {"layers", "layers"},
                    {"dtype", "dtype"},
                    {"threads", "threads"},
                    {"read_bytes", "read", Format::kBytes},
                    {"copy_gbs", "copy GB/s", Format::kOneDecimal},
                    {"bound_seconds", "bound", Format::kSeconds},
                    {"ratio", "of bound", Format::kOneDecimal}},
                   {{"tokens", "tokens"}, {"dtype", "dtype"}}),
        settings_(settings) {}

  std::vector<Section> run() {
    const std::vector<int> counts = parse_counts("tokens", settings_.tokens, kMostTokens, kMostTokens);
    const double copy = measure_copy_bandwidth(threads_, kCopyBytes, kCopySeconds);
    for (const std::string& dtype : choose_dtypes("dtype", settings_.published.dtype)) {
      for (const int count : counts) run_case(count, dtype, copy);
    }
    return sections("The text encoder", kNote, "Where the time of the last pass went");
  }

 private:
  void run_case(int64_t tokens, const std::string& dtype, double copy) {
    say(fmt::format("{} {} tokens", dtype, tokens));
    const DType type = pipeline::dtype_of(dtype);
    const encoders::TextEncoderConfig& config = model_.text_encoder();
    const double flop = encoders::text_encoder_flop(config, tokens);
    forget_peak_resident();
    const auto source = model_.source(Part::kTextEncoder, threads_);
    encoders::TextEncoder encoder(source, config, type, stream_);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i + 1 < tokens; ++i)
      ids.push_back(static_cast<int32_t>(2 + i * 7919 % (config.vocab_size - 2)));
    ids.push_back(static_cast<int32_t>(config.eos_token_id));
    const Tensor out(DType::kF32, {tokens, config.d_model});
    const std::vector<PairedRepeat> repeats =
        measure({Part::kTextEncoder, type, flop, [&] { encoder.encode(ids, out); },
                 [&] { return check_text_encoder(encoder, source, type, stream_); }, [&] { return degenerate(out); }},
                {tokens, config.num_layers, dtype, int64_t{threads_}}, {tokens, dtype});
    table_.set("above_weights_bytes", {});  // has no meaning: the encoder never keeps all weights
    if (repeats.empty()) return;
    table_.set("copy_gbs", copy * 1e-9);
    const io::Checkpoint* files = model_.checkpoint(Part::kTextEncoder);
    if (files == nullptr) return;
    const int64_t bytes = stored_bytes(*files, config, tokens);
    const double peak = median(each(repeats, [](const PairedRepeat& r) { return r.peak.flops; }));
    const double bound = std::max(static_cast<double>(bytes) / copy, flop / peak);
    table_.set("read_bytes", bytes);
    table_.set("bound_seconds", bound);
    table_.set("ratio", median(each(repeats, &PairedRepeat::seconds)) / bound);
  }

  const TextSettings& settings_;
};

}  // namespace

OptionSet describe(TextSettings& settings) {
  OptionSet options = describe_published(settings.published);
  options.text("tokens", settings.tokens, "ids of the prompt, the closing one included, one row each: up to 512");
  return options;
}

std::vector<Section> bench_text(const TextSettings& settings, const Progress& progress, Outcome& outcome) {
  return TextBench(settings, progress, outcome).run();
}

}  // namespace zoetrope::bench
