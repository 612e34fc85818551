// `bench text`: one prompt through the text encoder, whose weights are read in every pass and not kept.
#include "base/error.h"
#include "bench/cases.h"
#include "bench/memory.h"
#include "bench/model_check.h"
#include "bench/model_flops.h"
#include "bench/operations.h"
#include "bench/published.h"
#include "bench/statistics.h"
#include "bench/words.h"
#include "models/wan/tensor_list.h"
#include "models/wan/umt5/umt5.h"

namespace zoetrope::bench {
namespace {

constexpr int kMostTokens = 512;
constexpr size_t kCopyBytes = size_t{256} << 20;  // far beyond any cache
constexpr double kCopySeconds = 0.3;

// What a pass must read of the files: every layer, and the embedding's rows for the ids.
int64_t stored_bytes(const io::Checkpoint& files, const wan::TextEncoderConfig& config, int64_t ids) {
  int64_t bytes = 0;
  for (const wan::TensorSpec& spec : wan::text_encoder_tensors(config)) {
    const auto stored = static_cast<int64_t>(files.info(wan::stored_name(files, spec.name)).bytes);
    bytes += spec.name == wan::kEmbedding ? stored / config.vocab_size * ids : stored;
  }
  return bytes;
}

class TextBench {
 public:
  TextBench(const TextSettings& settings, const Progress& progress, Outcome& outcome)
      : settings_(settings),
        progress_(progress),
        outcome_(outcome),
        model_(Published::open(settings.published)),
        threads_(threads_of(settings.published)),
        stream_(threads_, {&trace_, 0, trace::kComputeLane}) {
    table_.columns = {{"tokens", "tokens"},
                      {"layers", "layers"},
                      {"dtype", "dtype"},
                      {"threads", "threads"},
                      {"read_bytes", "read", Format::kBytes},
                      {"copy_gbs", "copy GB/s", Format::kOneDecimal},
                      {"bound_seconds", "bound", Format::kSeconds},
                      {"ratio", "of bound", Format::kOneDecimal}};
    add_common_columns(table_.columns);
    operations_.columns = {{"tokens", "tokens"}, {"dtype", "dtype"}};
    add_operation_columns(operations_.columns);
  }

  void run() {
    const std::vector<int> counts = parse_counts("tokens", settings_.tokens, kMostTokens, kMostTokens);
    const double copy = measure_copy_bandwidth(threads_, kCopyBytes, kCopySeconds);
    for (const std::string& dtype : choose_dtypes("dtype", settings_.published.dtype)) {
      for (const int count : counts) run_case(count, dtype, copy);
    }
  }

  std::vector<Section> sections();

 private:
  void run_case(int64_t tokens, const std::string& dtype, double copy) {
    if (progress_) progress_(fmt::format("text {} {} tokens", dtype, tokens));
    const DType type = dtype == "bf16" ? DType::kBF16 : DType::kF32;
    const wan::TextEncoderConfig& config = model_.text_encoder();
    const double flop = text_encoder_flop(config, tokens);
    forget_peak_resident();
    const auto source = model_.source(Part::kTextEncoder, threads_);
    wan::TextEncoder encoder(source, config, type, stream_);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i + 1 < tokens; ++i)
      ids.push_back(static_cast<int32_t>(2 + i * 7919 % (config.vocab_size - 2)));
    ids.push_back(static_cast<int32_t>(config.eos_token_id));
    const Tensor out(DType::kF32, {tokens, config.d_model});
    Verdict verdict;
    const Timed timed = time_case(
        fastest_isa(type, stream_.team()), stream_.team(), flop, settings_.published.repeat,
        [&] {
          const trace::Span span(stream_.lane(), kPass);
          encoder.encode(ids, out);
        },
        [&] {
          verdict = check_text_encoder(encoder, source, type, stream_);
          const std::string wrong = verdict.passed() ? degenerate(out) : verdict.note();
          if (!wrong.empty()) ++outcome_.wrong;
          return wrong;
        });
    std::vector<Cell> row = {tokens, config.num_layers, dtype, int64_t{threads_}};
    row.resize(table_.columns.size());
    set_common(table_, row, timed, flop, parameter_bytes(model_, Part::kTextEncoder, type), verdict);
    // Above the weights says nothing of an encoder that never holds them all.
    table_.cell(row, "above_weights_bytes") = Cell();
    const auto set = [&](const char* key, Cell value) { table_.cell(row, key) = std::move(value); };
    if (!timed.figures.seconds.empty()) {
      set("copy_gbs", copy * 1e-9);
      if (const io::Checkpoint* files = model_.checkpoint(Part::kTextEncoder)) {
        const int64_t bytes = stored_bytes(*files, config, tokens);
        const double bound = std::max(static_cast<double>(bytes) / copy, flop / peak_of(timed));
        set("read_bytes", bytes);
        set("bound_seconds", bound);
        set("ratio", median(timed.figures.seconds) / bound);
      }
      add_operations(operations_, {tokens, dtype}, operations_of_last_pass(trace_), peak_of(timed));
    }
    table_.add(std::move(row));
  }

  const TextSettings& settings_;
  const Progress& progress_;
  Outcome& outcome_;
  Published model_;
  int threads_;
  trace::Trace trace_;
  Stream stream_;
  Table table_, operations_;
};

std::vector<Section> TextBench::sections() {
  Section encode, operations;
  encode.name = "text";
  encode.title = "The text encoder";
  encode.note =
      "One prompt of so many ids, the closing one included. 'bound' is the larger of two times: reading the layers' "
      "bytes at the rate at which all threads copy memory (memcpy, measured before), and the operations at the peak. "
      "Weights by formula (weights=random) are made, not read, and have no bound. 'resident' is the most memory the "
      "process had, file pages included. Before timing, the embedding, first and last layer and the last norm were "
      "compared with float64.";
  operations.name = "text_operations";
  operations.title = "Where the time of the last pass went";
  operations.note = "Spans of the engine by name, each without the spans inside it.";
  encode.table = std::move(table_);
  operations.table = std::move(operations_);
  return {std::move(encode), std::move(operations)};
}

}  // namespace

OptionSet describe(TextSettings& settings) {
  OptionSet options = describe_published(settings.published);
  options.text("tokens", settings.tokens, "ids of the prompt, the closing one included, one row each: up to 512");
  return options;
}

std::vector<Section> bench_text(const TextSettings& settings, const Progress& progress, Outcome& outcome) {
  TextBench bench(settings, progress, outcome);
  bench.run();
  return bench.sections();
}

}  // namespace zoetrope::bench
