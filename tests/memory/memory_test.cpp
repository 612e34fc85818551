// Ranks of one process share one copy of the weights: the peak memory of a transformer with more than 1 GB of weights,
// filled by formula, on four ranks against one. Each run is a process of its own, so that its peak is its own.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "zoetrope/attention.h"
#include "zoetrope/communicator.h"

#include "attention/plan.h"
#include "base/error.h"
#include "device/stream.h"
#include "io/weights/formula_testing.h"
#include "io/weights/weights.h"
#include "models/wan/tensor_tables.h"
#include "models/wan/transformer/transformer.h"

namespace zoetrope {
namespace {

namespace fs = std::filesystem;

wan::TransformerConfig config() {
  wan::TransformerConfig config;
  config.num_attention_heads = 8;
  config.attention_head_dim = 128;
  config.ffn_dim = 4096;
  config.num_layers = 16;
  config.text_dim = 256;
  return config;
}

fs::path write_formula() {
  const fs::path path = fs::path(testing::TempDir()) / fmt::format("formula_{}.json", getpid());
  std::ofstream file(path);
  file << "{\"seed\": 1, \"tensors\": {";
  const char* comma = "";
  for (const io::TensorSpec& spec : wan::transformer_tensors(config())) {
    file << fmt::format("{}\"{}\": {{\"shape\": {}, \"offset\": 0, \"amplitude\": 0.01}}", comma, spec.name,
                        spec.shape.to_string());
    comma = ", ";
  }
  file << "}}";
  return path;
}

struct Peak {
  int64_t bytes = 0;
  int64_t attention_workspace = 0;  // of all ranks: exchange buffers, K/V double buffers, states
};

constexpr int64_t kFrames = 4, kHeight = 16, kWidth = 16;  // latent cells; 256 tokens

void denoise_once(const std::shared_ptr<const wan::TransformerWeights>& weights, comm::Communicator& world,
                  int64_t& workspace) {
  Stream stream(1);
  attention::Problem problem;
  problem.tokens = kFrames * kHeight * kWidth / 4;
  problem.heads = config().num_attention_heads;
  problem.head_dim = config().attention_head_dim;
  attention::ContextAttention attention = attention::plan(problem, {}, world, stream);
  wan::Transformer transformer(weights, stream);
  transformer.prepare({kFrames, kHeight, kWidth}, 1, attention);
  const Tensor text(DType::kF32, {1, 32, config().text_dim}), latents(DType::kF32, {1, 16, kFrames, kHeight, kWidth});
  transformer.set_context(text);
  Tensor velocity(DType::kF32, {1, attention.tokens().size(), config().patch_output_dim()});
  transformer.forward(latents, std::vector<float>{500}, velocity);
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  workspace += static_cast<int64_t>(attention.workspace_bytes());
}

// In a child process, because a peak never falls.
Peak peak_of(int ranks, const fs::path& formula) {
  int ends[2];
  ZT_CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    Peak peak;
    const auto source = std::make_shared<io::Weights>(io::procedural_source(formula));
    const auto weights = wan::TransformerWeights::load(config(), source, DType::kF32);
    comm::run_ranks(ranks, [&](comm::Communicator& world) { denoise_once(weights, world, peak.attention_workspace); });
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    peak.bytes = usage.ru_maxrss * 1024;
    const ssize_t written = write(ends[1], &peak, sizeof(peak));
    _exit(written == sizeof(peak) ? 0 : 1);
  }
  Peak peak;
  ZT_CHECK(read(ends[0], &peak, sizeof(peak)) == sizeof(peak), "the child failed");
  int status = 0;
  waitpid(child, &status, 0);
  close(ends[0]);
  close(ends[1]);
  return peak;
}

TEST(Memory, FourRanksShareOneCopyOfTheWeights) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizer shadow memory would be counted as ours";
#endif
  const uint64_t weights = io::totals(wan::transformer_tensors(config())).bytes(DType::kF32);
  ASSERT_GE(weights, 1'000'000'000u);
  const fs::path formula = write_formula();
  const Peak one = peak_of(1, formula), four = peak_of(4, formula);
  fs::remove(formula);
  // The weights are really there, and there once.
  EXPECT_GE(one.bytes, static_cast<int64_t>(weights));
  EXPECT_LE(four.bytes, one.bytes + one.bytes * 15 / 100 + four.attention_workspace);
  RecordProperty("one_rank_bytes", fmt::to_string(one.bytes));
  RecordProperty("four_rank_bytes", fmt::to_string(four.bytes));
  fmt::print("weights {:.3f} GB; peak on one rank {:.3f} GB, on four {:.3f} GB\n", static_cast<double>(weights) * 1e-9,
             static_cast<double>(one.bytes) * 1e-9, static_cast<double>(four.bytes) * 1e-9);
}

}  // namespace
}  // namespace zoetrope
