// zoetrope attention: exact attention over ranks, on tensors of a file or on random ones, timed and compared.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/print.h"
#include "cli/attention_data.h"
#include "cli/attention_options.h"
#include "cli/attention_report.h"
#include "cli/attention_run.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "comm/gather_trace.h"
#include "comm/launcher.h"
#include "io/safetensors.h"
#include "pipeline/agreement.h"
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
      "Keys, as key=value or in a YAML file (later wins; key=default takes back what was set before):\n{}\n{}\n"
      "Examples:\n"
      "  zoetrope attention input=qkv.safetensors output=o.safetensors ranks=4 attention=ulysses_ring\n"
      "  zoetrope attention shape=1x4096x8x128 repeat=10 reference=true json=attention.json\n"
      "  mpirun -n 4 zoetrope attention shape=1x16384x8x128 attention=ring threads=1 trace=ring.json\n",
      describe_options(options).help(), attention_json_help());
}

double timeout(const std::vector<std::string>& arguments) {
  AttentionOptions options;
  OptionSet set = describe_options(options);
  try {
    parse(arguments, set);
  } catch (const std::exception&) {
    return AttentionOptions().comm_timeout;
  }
  return options.comm_timeout;
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

// Against the definition in float64: all query tokens, as long as Sq·Skv·H·B·D is at most kMostWork (masked keys
// included); otherwise as many as that allows, evenly spaced.
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

// After the ranks have computed: what is written and printed, by one process.
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
    bench::gather_output(output.o, world);
    if (output.log_sum_exp) bench::gather_output(output.log_sum_exp, world);
  }
  if (trace != nullptr) comm::gather_trace(world, *trace);
  // Rank 0 alone goes on, for as long as it takes: nobody waits for it any more.
  if (world.rank() == 0) finish(options, data, measured, output, trace);
}

void run(const AttentionOptions& options, const OptionSet& set, comm::Communicator* world) {
  check_options(options);
  stop_at_safe_points();
  const ProcessPart part = world == nullptr ? ProcessPart{} : ProcessPart{world->rank(), world->size()};
  const bench::AttentionData data = open_attention_data(options, part);
  if (world == nullptr || world->rank() == 0) check_files_can_be_written(options);
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

const Command kAttention = {
    "attention", "key=value…", "Attend over ranks: a file's q, k, v or random ones, timed and compared",
    help,        timeout,      run};

}  // namespace zoetrope::cli
