#include "bench/block_tiles.h"

#include <fmt/format.h>

#include "attention/plan.h"
#include "base/error.h"
#include "bench/forward_inputs.h"
#include "bench/published.h"
#include "pipeline/ranks/agreement.h"
#include "trace/trace.h"

namespace zoetrope::bench {
namespace {

using kernels::TileCandidate;
using kernels::TileSizes;

// What the ranks share.
struct Block {
  const BlockTileSettings& settings;
  const Progress& progress;
  std::shared_ptr<const wan::TransformerWeights> weights;
  ForwardSize size;
  ForwardInputs inputs;
  int64_t tokens;
};

attention::ContextAttention plan_attention(const Block& block, comm::Communicator& world, Stream& stream) {
  const wan::TransformerConfig& config = block.weights->config;
  const BlockTileSettings& settings = block.settings;
  attention::Strategy strategy = attention::parse_strategy(settings.strategy, world.size(), config.num_attention_heads);
  strategy.kernel = settings.kernel;
  strategy.deterministic = true;  // asks no cache: every run sets its tiles
  return attention::plan({.batch = 1,
                          .tokens = block.tokens,
                          .heads = config.num_attention_heads,
                          .head_dim = config.attention_head_dim,
                          .dtype = settings.dtype,
                          .scale = 0},
                         strategy, world, stream);
}

// One rank. Every time is that of the slowest rank, so all ranks decide alike.
class BlockRank {
 public:
  BlockRank(const Block& block, comm::Communicator& world)
      : block_(block),
        world_(world),
        stream_(block.settings.threads),
        attention_(plan_attention(block, world, stream_)),
        transformer_(block.weights, stream_),
        velocity_(block.settings.dtype, {1, attention_.tokens().size(), block.weights->config.patch_output_dim()}) {
    const kernels::FlashProblem* problem = kernel_problem(attention_);
    if (!pipeline::on_every_rank(world, problem != nullptr))
      fail("{} tokens and {} heads are too few for {} ranks: some would compute no attention", block.tokens,
           block.weights->config.num_attention_heads, world.size());
    problem_ = *problem;
    transformer_.prepare(block.size.latent, 1, attention_);
    block.inputs.give(transformer_);
  }

  BlockTiles search() {
    BlockTiles found{block_.tokens, attention_.layout(), attention_.softmax(), problem_, {}, {}};
    kernels::KernelTimer kernel(problem_, stream_);
    found.kernel = search("kernel", [&](const TileSizes& sizes) { return kernel.time(sizes); });
    found.block = search("block", [&](const TileSizes& sizes) { return time_block(sizes); });
    return found;
  }

 private:
  template <typename Time>
  std::vector<TileCandidate> search(const char* what, const Time& time) {
    int run = 0;
    return search_tiles(problem_, block_.settings.seconds, [&](const TileSizes& sizes) {
      if (world_.rank() == 0 && block_.progress)
        block_.progress(fmt::format("{}: run {}, {} x {}", what, ++run, sizes.query, sizes.keys));
      world_.barrier();
      return world_.all_reduce_max(time(sizes));
    });
  }

  // From the last value before the block to its own.
  double time_block(const TileSizes& sizes) {
    set_tiles(attention_, sizes);
    trace::Clock::time_point begin, end;
    const auto watch = [&](std::string_view name, const TensorView&) {
      if (end != trace::Clock::time_point()) return;
      (name == "block.0" ? end : begin) = trace::Clock::now();
    };
    transformer_.forward(block_.inputs.latents, std::vector<float>{kRunTimestep}, velocity_, watch);
    return std::chrono::duration<double>(end - begin).count();
  }

  const Block& block_;
  comm::Communicator& world_;
  Stream stream_;
  attention::ContextAttention attention_;
  wan::Transformer transformer_;
  const Tensor velocity_;
  kernels::FlashProblem problem_;
};

}  // namespace

BlockTiles search_block_tiles(const BlockTileSettings& settings, const Progress& progress) {
  const Published model = Published::open({.model = settings.model, .layers = 1});
  const ForwardSize size{.latent = model.latent_of(settings.height, settings.width, settings.num_frames),
                         .text_rows = kRunTextRows,
                         .image_rows = kRunImageRows};
  if (const int64_t tokens = wan::token_grid(model.transformer(), size.latent).tokens(); tokens < settings.ranks)
    fail("{} tokens are too few for {} ranks: some would compute no attention", tokens, settings.ranks);
  if (progress) progress("random weights of a block");
  const auto source = model.source(Part::kTransformer, settings.ranks * settings.threads);
  const auto weights =
      wan::TransformerWeights::load(model.transformer(), std::make_shared<io::Weights>(source), settings.dtype);
  const Block block{settings,
                    progress,
                    weights,
                    size,
                    ForwardInputs(weights->config, size, settings.dtype),
                    wan::token_grid(weights->config, size.latent).tokens()};
  BlockTiles found;
  comm::run_ranks(settings.ranks,
                  [&](comm::Communicator& world) {
                    BlockTiles mine = BlockRank(block, world).search();
                    if (world.rank() == 0) found = std::move(mine);
                  },
                  {.timeout_seconds = kCommTimeout});
  return found;
}

}  // namespace zoetrope::bench
