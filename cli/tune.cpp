// zoetrope tune: searches for the best tile sizes of a shape on this CPU and stores them for later runs.
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/options.h"
#include "base/print.h"
#include "base/words.h"
#include "cli/attention.h"
#include "cli/command.h"
#include "kernels/flash_attention/tile_search.h"
#include "pipeline/dtype_name.h"

namespace zoetrope::cli {
namespace {

using kernels::TileCache;
using kernels::TileCandidate;
using kernels::TileEntry;

struct TuneOptions {
  std::string shape = "1x32760x1x128";
  std::optional<int64_t> kv;
  std::string dtype = "bf16";
  std::string softmax = "online";
  std::string implementation;
  std::optional<int64_t> threads;
  double seconds = 10;
  std::string cache;
  bool list = false;
};

OptionSet describe(TuneOptions& o) {
  OptionSet set;
  set.text("shape", o.shape, "shape to tune for, as BxSxHxD; the result applies to all S near this one")
      .integer("kv", o.kv, {1, INT64_MAX}, "tokens of k and v; unset: those of q")
      .dtype("dtype", o.dtype, "dtype of q, k, v and o")
      .choice("softmax", o.softmax, {"online", "fixed_max"}, "the softmax to tune")
      .text("implementation", o.implementation, "the kernel to tune; auto or unset: the one that a run would use")
      .integer("threads", o.threads, {1, 4096}, "compute threads; unset: all cores")
      .number("seconds", o.seconds, {0, 1e5}, "duration of the search; every candidate is timed at least three times")
      .text("cache", o.cache, "the file of results; unset: zoetrope/tiles.json in the user's cache folder")
      .flag("list", o.list, "only list the stored results");
  return set;
}

std::string help() {
  TuneOptions options;
  return fmt::format(
      "Keys, as key=value:\n{}\n"
      "Later runs on the same CPU model use the result, unless deterministic=true or flash_block_sizes is given.\n"
      "Example:\n  zoetrope tune shape=1x32760x1x128 dtype=bf16\n",
      describe(options).help());
}

void print_entries(const TileCache& cache) {
  const std::vector<TileEntry> entries = cache.entries();
  if (entries.empty()) {
    print("{}: nothing is stored yet\n", cache.file().string());
    return;
  }
  print("{}\n{:<12} {:<5} {:>4} {:<10} {:>8} {:>8} {:>9} {:>6}  {}\n", cache.file().string(), "kernel", "dtype", "D",
        "softmax", "keys ~", "block_q", "block_kv", "gain", "CPU");
  for (const TileEntry& e : entries) {
    print("{:<12} {:<5} {:>4} {:<10} {:>8} {:>8} {:>9} {:>6.3f}  {}\n", e.key.implementation, e.key.dtype,
          e.key.head_dim, e.key.softmax, e.key.keys, e.sizes.query, e.sizes.keys, e.gain, e.key.cpu);
  }
}

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
  problem.softmax = o.softmax == "fixed_max" ? kernels::Softmax::kFixedMax : kernels::Softmax::kOnline;
  if (o.implementation != "auto") problem.implementation = o.implementation;
  return problem;
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
  const kernels::FlashProblem problem = problem_of(options);
  const kernels::TileKey key = tile_key(problem);  // refuses what this CPU cannot run
  cache.entries();                                 // and a file that cannot be written
  Stream stream(static_cast<int>(options.threads.value_or(available_threads())));
  std::vector<TileCandidate> found;
  {
    const kernels::TileCacheLock lock(
        cache, [](const std::string& holder) { print_error("waiting for {} to finish its search …\n", holder); });
    if (isatty(STDERR_FILENO) != 0) print_error("searching …\n");
    found = search_tiles(problem, stream, options.seconds);
    cache.remember(tile_entry(problem, found));
  }
  const TileEntry entry = tile_entry(problem, found);
  print("{} {}, D = {}, {} softmax, about {} keys, {}\n{:>8} {:>9} {:>10}\n", key.implementation, key.dtype,
        key.head_dim, key.softmax, key.keys, counted(stream.team().size(), "thread"), "block_q", "block_kv", "time");
  for (const TileCandidate& c : found) {
    print("{:>8} {:>9} {:>10.4f}{}{}\n", c.sizes.query, c.sizes.keys, c.seconds / found.front().seconds,
          c.table ? "  built-in" : "", c.sizes == entry.sizes ? "  stored" : "");
  }
  print("stored in {}\n", cache.file().string());
  return 0;
}

}  // namespace

const Command kTune = {"tune", "[key=value …]", "Search for the best tile sizes on this CPU and store them",
                       help,   nullptr,         run};

}  // namespace zoetrope::cli
