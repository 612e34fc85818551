// zoetrope tune: searches for the best tile sizes on this CPU, by the kernel's time or by that of a transformer block,
// and stores them for later runs.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "attention/strategy_options.h"
#include "base/error.h"
#include "base/options.h"
#include "base/print.h"
#include "base/words.h"
#include "bench/block_tiles.h"
#include "cli/attention.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/progress.h"
#include "comm/launcher.h"
#include "kernels/flash_attention/tile_search.h"
#include "parallel/layout.h"
#include "pipeline/settings/dtype_word.h"

namespace zoetrope::cli {
namespace {

using kernels::TileCache;
using kernels::TileCandidate;
using kernels::TileEntry;

constexpr int64_t kMostPixels = 1 << 16, kMostFrames = 100000;

struct TuneOptions {
  std::string mode = "kernel";
  std::string shape = "1x32760x1x128";
  std::optional<int64_t> kv;
  std::string model = bench::PublishedSettings().model;
  std::optional<int64_t> height, width, num_frames;
  std::optional<int64_t> ranks;
  attention::StrategyOptions strategy;
  std::string dtype = "bf16";
  std::string implementation;
  std::optional<int64_t> threads;
  double seconds = 10;
  std::string cache;
  bool list = false;
};

void describe_kernel(OptionSet& set, TuneOptions& o) {
  set.text("shape", o.shape, "shape to tune for, as BxSxHxD; the result applies to all S near this one")
      .integer("kv", o.kv, {1, INT64_MAX}, "tokens of k and v; unset: those of q");
}

void describe_block(OptionSet& set, TuneOptions& o) {
  set.text("model", o.model,
           "the model whose block it is, by random weights: a name of configs/ or a checkpoint folder")
      .integer("height", o.height, {1, kMostPixels}, "pixels of the video")
      .integer("width", o.width, {1, kMostPixels}, "pixels of the video")
      .integer("num_frames", o.num_frames, {1, kMostFrames}, "frames of the video")
      .integer("ranks", o.ranks, {1, 4096}, "ranks in this process; unset: 1");
}

OptionSet describe(TuneOptions& o) {
  OptionSet set;
  set.choice("mode", o.mode, {"kernel", "block"},
             "what is timed: the attention kernel alone (mode=kernel, with shape and kv), or a transformer block over "
             "ranks with all that surrounds it (mode=block, with model, size and layout)");
  describe_kernel(set, o);
  describe_block(set, o);
  attention::describe_layout_options(set, o.strategy);
  set.dtype("dtype", o.dtype, "dtype of q, k, v and o, and of the block")
      .text("implementation", o.implementation, "the kernel to tune; auto or unset: the one that a run would use")
      .integer("threads", o.threads, {1, 4096}, "compute threads, shared by the ranks; unset: all cores")
      .number("seconds", o.seconds, {0, 1e5},
              "duration of the search, of a block two searches; every candidate is timed at least three times")
      .text("cache", o.cache, "the file of results; unset: zoetrope/tiles.json in the user's cache folder")
      .flag("list", o.list, "only list the stored results");
  return set;
}

std::string help() {
  TuneOptions options;
  return fmt::format(
      "Keys, as key=value:\n{}\n"
      "Later runs on the same CPU model use the result, unless deterministic=true or flash_block_sizes is given.\n"
      "Examples:\n  zoetrope tune shape=1x32760x1x128 dtype=bf16\n"
      "  zoetrope tune mode=block model=wan2.1_t2v_1.3b height=480 width=832 num_frames=17 ranks=2 attention=ulysses\n",
      describe(options).help());
}

void check_mode(const TuneOptions& o, const OptionSet& set) {
  TuneOptions other;
  OptionSet refused;
  if (o.mode == "block") {
    describe_kernel(refused, other);
    if (!o.height || !o.width || !o.num_frames)
      fail(
          "mode=block times a block at the size of a video: give height, width and num_frames, as height=480 width=832 "
          "num_frames=17");
  } else {
    describe_block(refused, other);
    attention::describe_layout_options(refused, other.strategy);
  }
  for (const auto& [key, value] : set.settings()) {
    if (refused.knows(key) && key != "softmax" && !set.origin(key).empty())
      fail("{}={} is not for mode={}; leave one of them out", key, value, o.mode);
  }
}

void print_entries(const TileCache& cache) {
  const std::vector<TileEntry> entries = cache.entries();
  if (entries.empty()) {
    print("{}: nothing is stored yet\n", cache.file().string());
    return;
  }
  print("{}\n{:<14} {:<5} {:>4} {:<10} {:>8} {:>8} {:>9} {:>6}  {}\n", cache.file().string(), "kernel", "dtype", "D",
        "softmax", "keys ~", "block_q", "block_kv", "gain", "CPU");
  for (const TileEntry& e : entries) {
    print("{:<14} {:<5} {:>4} {:<10} {:>8} {:>8} {:>9} {:>6.3f}  {}\n", e.key.implementation, e.key.dtype,
          e.key.head_dim, e.key.softmax, e.key.keys, e.sizes.query, e.sizes.keys, e.gain, e.key.cpu);
  }
}

std::string implementation_of(const TuneOptions& o) { return o.implementation == "auto" ? "" : o.implementation; }

kernels::FlashProblem problem_of(const TuneOptions& o) {
  const Shape shape = parse_shape(o.shape);
  kernels::FlashProblem problem;
  problem.batch = shape[0];
  problem.query_tokens = shape[1];
  problem.key_tokens = o.kv.value_or(shape[1]);
  problem.heads = shape[2];
  problem.head_dim = shape[3];
  problem.dtype = pipeline::dtype_of(o.dtype);
  problem.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape[3])));
  problem.softmax =
      o.strategy.softmax == attention::Softmax::kFixedMax ? kernels::Softmax::kFixedMax : kernels::Softmax::kOnline;
  problem.implementation = implementation_of(o);
  return problem;
}

void print_problem(const kernels::TileKey& key, int threads) {
  print("{} {}, D = {}, {} softmax, about {} keys, {}\n", key.implementation, key.dtype, key.head_dim, key.softmax,
        key.keys, counted(threads, "thread"));
}

std::string marks(const TileCandidate& c, const TileEntry& stored) {
  return fmt::format("{}{}", c.table ? "  built-in" : "", c.sizes == stored.sizes ? "  stored" : "");
}

TileEntry tune_kernel(const TuneOptions& options, const kernels::FlashProblem& problem) {
  Stream stream(static_cast<int>(options.threads.value_or(available_threads())));
  if (isatty(STDERR_FILENO) != 0) print_error("searching …\n");
  kernels::KernelTimer kernel(problem, stream);
  const std::vector<TileCandidate> found =
      search_tiles(problem, options.seconds, [&](const kernels::TileSizes& sizes) { return kernel.time(sizes); });
  TileEntry entry = tile_entry(problem, found);
  print_problem(entry.key, stream.team().size());
  print("{:>8} {:>9} {:>10}\n", "block_q", "block_kv", "time");
  for (const TileCandidate& c : found) {
    print("{:>8} {:>9} {:>10.4f}{}\n", c.sizes.query, c.sizes.keys, found.front().gain / c.gain, marks(c, entry));
  }
  return entry;
}

TileEntry tune_block(const TuneOptions& o) {
  stop_at_safe_points();
  bench::BlockTileSettings settings;
  settings.model = o.model;
  settings.height = *o.height;
  settings.width = *o.width;
  settings.num_frames = *o.num_frames;
  settings.dtype = pipeline::dtype_of(o.dtype);
  settings.strategy = o.strategy;
  settings.kernel = implementation_of(o);
  settings.ranks = static_cast<int>(o.ranks.value_or(1));
  settings.seconds = o.seconds;
  settings.threads = std::max(1, comm::process_threads(o.threads) / settings.ranks);
  const bench::BlockTiles found = bench::search_block_tiles(settings, show_progress);
  show_progress("");
  TileEntry entry = tile_entry(found.problem, found.block);
  const TileEntry alone = tile_entry(found.problem, found.kernel);
  print("{}, a block of {} tokens, {} of {}: {}\n", o.model, found.tokens, counted(settings.ranks, "rank"),
        counted(settings.threads, "thread"), parallel::text(found.layout, found.softmax));
  print_problem(entry.key, settings.threads);
  print("{:>8} {:>9} {:>10} {:>10} {:>11}\n", "block_q", "block_kv", "kernel", "block", "block");
  for (const TileCandidate& c : found.block) {
    const auto kernel = std::find_if(found.kernel.begin(), found.kernel.end(),
                                     [&](const TileCandidate& other) { return other.sizes == c.sizes; });
    print("{:>8} {:>9} {:>10.4f} {:>10.4f} {:>8.2f} ms{}{}\n", c.sizes.query, c.sizes.keys,
          found.kernel.front().gain / kernel->gain, found.block.front().gain / c.gain, c.seconds * 1e3, marks(c, entry),
          c.sizes == alone.sizes ? "  best of the kernel" : "");
  }
  if (entry.sizes == alone.sizes) {
    print("kernel and block agree\n");
  } else {
    print("the block is fastest with {} x {}, the kernel alone with {} x {}\n", entry.sizes.query, entry.sizes.keys,
          alone.sizes.query, alone.sizes.keys);
  }
  return entry;
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  if (world != nullptr) fail("tune measures one process; start it without mpirun");
  TuneOptions options;
  OptionSet set = describe(options);
  for (const std::string& word : arguments) set.set_argument(word);
  const TileCache cache(options.cache.empty() ? TileCache::default_file() : std::filesystem::path(options.cache));
  if (options.list) {
    print_entries(cache);
    return 0;
  }
  check_mode(options, set);
  const bool block = options.mode == "block";
  const kernels::FlashProblem problem = block ? kernels::FlashProblem() : problem_of(options);
  if (!block) tile_key(problem);  // refuses what this CPU cannot run
  cache.entries();                // and a file that cannot be read
  {
    const kernels::TileCacheLock lock(
        cache, [](const std::string& holder) { print_error("waiting for {} to finish its search …\n", holder); });
    cache.remember(block ? tune_block(options) : tune_kernel(options, problem));
  }
  print("stored in {}\n", cache.file().string());
  return 0;
}

}  // namespace

const Command kTune = {"tune", "[key=value …]", "Search for the best tile sizes on this CPU and store them",
                       help,   nullptr,         run};

}  // namespace zoetrope::cli
