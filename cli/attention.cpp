// zoetrope attention: exact attention over ranks, on tensors from a file or random ones, timed and compared.
#include "cli/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "attention/strategy.h"
#include "base/error.h"
#include "base/print.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "comm/gather_trace.h"
#include "comm/launcher.h"
#include "io/weights/safetensors.h"
#include "parallel/shards.h"
#include "pipeline/ranks/agreement.h"
#include "trace/trace.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;

void parse(const std::vector<std::string>& arguments, OptionSet& set) {
  for (const std::string& word : arguments) {
    const fs::path path = word;
    if (word.find('=') == std::string::npos && (path.extension() == ".yml" || path.extension() == ".yaml")) {
      set.load_yaml(path);
    } else {
      set.set_argument(word);
    }
  }
}

std::string help() {
  AttentionOptions options;
  return fmt::format(
      "Keys, as key=value or in a YAML file (the last value counts; key=default resets a key):\n{}\n{}\n"
      "Examples:\n"
      "  zoetrope attention input=qkv.safetensors output=o.safetensors ranks=4 attention=ulysses_ring\n"
      "  zoetrope attention shape=1x4096x8x128 repeat=10 reference=true json=attention.json\n"
      "  mpirun -n 4 zoetrope attention shape=1x16384x8x128 attention=ring threads=1 trace=ring.json\n",
      describe_options(options).help(), attention_json_help());
}

comm::RankOptions deadline(const std::vector<std::string>& arguments) {
  AttentionOptions options;
  OptionSet set = describe_options(options);
  parse(arguments, set);
  return {.timeout_seconds = options.comm_timeout};
}

struct AttentionOutput {
  AttentionOutput(const bench::AttentionData& data, bool with_log_sum_exp)
      : o(Tensor::uninitialized(data.q.dtype(), data.q.shape())) {
    if (with_log_sum_exp)
      log_sum_exp = Tensor::uninitialized(DType::kF32, {data.q.extent(0), data.q.extent(1), data.q.extent(2)});
  }
  Tensor o;            // [B, Sq, H, D] of q's dtype
  Tensor log_sum_exp;  // [B, Sq, H] F32; empty where it is not wanted
};

// The error against the definition in float64: of all query tokens if Sq·Skv·H·B·D (masked keys included) is at most
// kMostWork; otherwise of evenly spaced ones within that limit.
bench::Verdict compare_with_reference(const bench::AttentionData& data, const attention::Problem& problem,
                                      const AttentionOutput& output, int threads) {
  constexpr double kMostWork = 2e10;  // multiply-adds of q·k: half a minute of a core
  const int64_t tokens = data.query_tokens();
  const auto most = static_cast<int64_t>(std::min(kMostWork / static_cast<double>(data.k.size()), 1e18));
  const int64_t rows = std::clamp<int64_t>(most, 1, tokens), step = tokens / rows;
  kernels::FlashProblem flash = data.problem();
  flash.scale = problem.scale;
  ThreadTeam team(threads);
  return bench::SampledReference(data, flash, {{(tokens - 1 - (rows - 1) * step) / 2, step, rows}}, team)
      .check(output.o, output.log_sum_exp);
}

// After the run: one process compares, prints and writes.
void finish(const AttentionOptions& options, const bench::AttentionData& data, const AttentionMeasurement& measured,
            const AttentionOutput& output, const trace::Trace* trace) {
  std::optional<bench::Verdict> errors;
  if (options.reference)
    errors = compare_with_reference(data, measured.problem, output, comm::process_threads(options.threads));
  print("{}", attention_text(measured, data, errors));
  if (!options.output.empty()) {
    io::SafetensorsWriter writer;
    writer.add("o", output.o);
    if (output.log_sum_exp) writer.add("log_sum_exp", output.log_sum_exp);
    writer.write(options.output);
  }
  if (!options.json.empty()) write_attention_json(options.json, measured, data, errors);
  if (trace != nullptr) trace->write(options.trace);
  for (const std::string* path : {&options.output, &options.json, &options.trace}) {
    if (!path->empty()) print("Wrote {}\n", printable(*path));
  }
}

// What ranks of one process share, and a rank of an MPI job has for itself.
struct AttentionRun {
  const AttentionOptions& options;
  const bench::AttentionData& data;
  TensorView o;            // [B, Sq, H, D] of q's dtype; a rank writes its own tokens
  TensorView log_sum_exp;  // [B, Sq, H] F32, likewise; empty without log_sum_exp=true
  int threads = 1;         // per rank
  bool shared = true;      // the ranks are threads of this process: data and o are those of all of them
  trace::Trace* trace = nullptr;
};

void fill(const AttentionRun& run, const parallel::ContextLayout& layout, comm::Communicator& world, Stream& stream) {
  const bench::AttentionData& data = run.data;
  const IndexRange own = parallel::token_shard(data.query_tokens(), layout, world.rank());
  IndexRange queries = own, keys = data.cross() ? IndexRange{0, data.key_tokens()} : own;
  // Replicated keys of one process are filled once; rank 0 of several processes needs everything, to compare.
  if (run.shared && data.cross() && world.rank() != 0) keys = {};
  if (!run.shared && run.options.reference && world.rank() == 0) {
    queries = {0, data.query_tokens()};
    keys = {0, data.key_tokens()};
  }
  {
    const trace::Span span(stream.lane(), "random data");
    fill_random(data, run.options.seed, queries, keys, stream.team());
  }
  world.barrier();
}

// The same choice on all ranks. In cross-attention nothing is sent, with any strategy.
std::optional<pipeline::RankPlan> choose(const AttentionRun& run, comm::Communicator& world, float scale) {
  if (run.data.cross()) return std::nullopt;
  const AttentionOptions& o = run.options;
  const pipeline::Job job = pipeline::job_of(world, o.threads, o.hardware);
  pipeline::RankPlan planned = pipeline::agreed_plan(world, [&](const auto& heartbeat) {
    return pipeline::choose_attention(bench::problem_of(run.data, scale), o.strategy, o.hardware, job, heartbeat);
  });
  if (!o.implementation.empty() && o.implementation != "auto")
    planned.notes.push_back("its figures are those of the fastest kernel, not of implementation=" + o.implementation);
  return planned;
}

// Collective.
AttentionMeasurement run_attention(const AttentionRun& run, comm::Communicator& world) {
  Stream stream(run.threads, {run.trace, world.rank(), trace::kComputeLane});
  const auto scale = static_cast<float>(run.options.scale.value_or(0));
  AttentionMeasurement result;
  result.planned = choose(run, world, scale);
  attention::Strategy strategy = strategy_of(run.options, run.data.q.dtype(), world.size(), run.data.q.extent(2));
  if (result.planned) {
    strategy.layout = parallel::ContextRequest::exactly(result.planned->layout.context);
    strategy.softmax = result.planned->softmax;
  }
  if (run.options.input.empty()) fill(run, filled(strategy.layout, world.size(), run.data.q.extent(2)), world, stream);
  bench::AttentionRank rank(world, stream, run.data, run.o, strategy, scale, run.log_sum_exp);
  // When tracing, every repeat is one run: thousands would be useless.
  static_cast<bench::AttentionMeasurement&>(result) = rank.time(run.options.repeat, run.trace != nullptr, [] {
    if (interrupted()) fail("interrupted");
  });
  result.ranks = world.size();
  result.threads = run.threads;
  return result;
}

void run_in_process(const AttentionOptions& options, const bench::AttentionData& data, trace::Trace* trace) {
  const int ranks = static_cast<int>(options.ranks.value_or(1));
  const AttentionOutput output(data, options.log_sum_exp);
  const AttentionRun job{
      options, data, output.o, output.log_sum_exp, std::max(1, comm::process_threads(options.threads) / ranks),
      true,    trace};
  AttentionMeasurement measured;
  comm::RankOptions rank_options;
  rank_options.timeout_seconds = options.comm_timeout;
  rank_options.trace = trace;
  comm::run_ranks(
      ranks,
      [&](comm::Communicator& world) {
        AttentionMeasurement mine = run_attention(job, world);
        if (world.rank() == 0) measured = std::move(mine);
      },
      rank_options);
  finish(options, data, measured, output, trace);
}

void run_on_mpi(const AttentionOptions& options, const OptionSet& set, const bench::AttentionData& data,
                trace::Trace* trace, comm::Communicator& world) {
  const comm::RecordingScope recording(world, trace);
  pipeline::require_agreement(world, set.values() + fingerprint(data));
  pipeline::require_ranks(options.ranks, world);
  const AttentionOutput output(data, options.log_sum_exp);
  const AttentionRun job{options, data, output.o, output.log_sum_exp, comm::process_threads(options.threads),
                         false,   trace};
  const AttentionMeasurement measured = run_attention(job, world);
  if (!options.output.empty() || options.reference) {
    bench::gather_output(output.o, measured.layout, world);
    if (output.log_sum_exp) bench::gather_output(output.log_sum_exp, measured.layout, world);
  }
  if (trace != nullptr) comm::gather_trace(world, *trace);
  // Only rank 0 continues, for as long as it takes: no other rank waits for it.
  if (world.rank() == 0) finish(options, data, measured, output, trace);
}

void run(const AttentionOptions& options, const OptionSet& set, comm::Communicator* world) {
  check_options(options);
  stop_at_safe_points();
  const ProcessPart part = world == nullptr ? ProcessPart{} : ProcessPart{world->rank(), world->size()};
  const bench::AttentionData data = open_attention_data(options, part);
  if (world == nullptr || world->rank() == 0) {
    check_files_can_be_written(options);
    for (const std::string& note :
         {attention::strategy_note(options.strategy), attention::tile_note(options.strategy.flash_block_sizes)})
      if (!note.empty()) print_error("Note: {}\n", note);
  }
  const auto trace = options.trace.empty() ? nullptr : std::make_unique<trace::Trace>();
  if (world == nullptr) {
    run_in_process(options, data, trace.get());
  } else {
    run_on_mpi(options, set, data, trace.get(), *world);
  }
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  AttentionOptions options;
  OptionSet set = describe_options(options);
  parse(arguments, set);
  with_origins(set, [&] { run(options, set, world); });
  return 0;
}

}  // namespace

const Command kAttention = {"attention",
                            "key=value…",
                            "Compute attention over ranks, on tensors from a file or random ones; time and verify it",
                            help,
                            deadline,
                            run};

}  // namespace zoetrope::cli
