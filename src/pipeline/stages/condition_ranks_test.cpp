// Conditions over ranks as far as waiting goes: their values are checked by the golden tests and those of ranks.
#include "pipeline/stages/condition_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "pipeline/inputs/inputs.h"
#include "pipeline/outputs/dump.h"
#include "pipeline/planning/plan.h"
#include "pipeline/ranks/rank_heartbeat.h"
#include "pipeline/stages/model_weights.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using std::chrono::milliseconds;

// A piece is shorter than the ranks' deadline, all pieces together are longer.
constexpr milliseconds kPiece{4000};
constexpr double kDeadline = 7;

TEST(RankHeartbeat, WaitsForAsLongAsPiecesCome) {
  std::atomic<int> waited{0};
  comm::run_ranks(3,
                  [&](comm::Communicator& ranks) {
                    RankHeartbeat heartbeat(ranks, "a long piece of work");
                    if (ranks.rank() > 0) {
                      heartbeat.wait();
                      ++waited;
                      return;
                    }
                    for (int piece = 0; piece < 2; ++piece) {
                      std::this_thread::sleep_for(kPiece);
                      EXPECT_EQ(waited, 0);
                      heartbeat.beat();
                    }
                    heartbeat.done();
                  },
                  {.timeout_seconds = kDeadline});
  EXPECT_EQ(waited, 2);
}

TEST(RankHeartbeat, NamesTheRankThatStopsWorking) {
  const auto stops = [] {
    comm::run_ranks(2,
                    [](comm::Communicator& ranks) {
                      RankHeartbeat heartbeat(ranks, "a long piece of work");
                      if (ranks.rank() > 0) return heartbeat.wait();
                      heartbeat.beat();
                      std::this_thread::sleep_for(milliseconds(600));
                    },
                    {.timeout_seconds = 0.2});
  };
  EXPECT_THAT(error_of(stops),
              testing::AllOf(testing::HasSubstr("a long piece of work"), testing::HasSubstr("rank 0")));
}

// The image encoder of a slow machine: rank 0 takes longer for all of its layers than any rank may wait.
TEST(ConditionRanks, WaitForTheImageEncoderLayerByLayer) {
  GenerateOptions options;
  options.model = recorded_model("wan21_i2v").string();
  options.height = 32;
  options.width = 48;
  options.num_frames = 5;
  options.threads = 1;
  options.image = (recorded_model("wan21_i2v") / "inputs" / "image.png").string();
  const ModelFolder model = ModelFolder::open(options);
  const RunPlan plan = plan_run(options, model);
  const Inputs inputs = read_inputs(options, model);
  const int64_t layers = model.image_encoder->config.layers_used();
  ASSERT_GT(static_cast<double>(layers) * std::chrono::duration<double>(kPiece).count(), kDeadline);
  Callbacks callbacks;
  std::atomic<int64_t> pieces{0};
  callbacks.cancelled = [&] {  // the encoder's layers are the first to ask
    if (pieces++ < layers) std::this_thread::sleep_for(kPiece);
    return false;
  };
  const parallel::ParallelLayout layout{.context = {.ulysses = 2}, .vae_ranks = 2};
  SharedVae shared;
  std::vector<Tensor> rows(2);
  comm::run_ranks(2,
                  [&](comm::Communicator& world) {
                    trace::Timing timing;
                    Dump dump("");
                    const Stage stage{options, model, plan, layout, callbacks, timing, nullptr};
                    rows[static_cast<size_t>(world.rank())] =
                        encode_conditions(stage, inputs, world, shared, Dumps({&dump})).image_rows;
                  },
                  {.timeout_seconds = kDeadline});
  EXPECT_GT(pieces, layers);  // pictures were encoded behind them
  ASSERT_TRUE(rows[0] && rows[1]);
  EXPECT_EQ(std::memcmp(rows[0].view().raw(), rows[1].view().raw(), rows[0].view().bytes()), 0);
}

}  // namespace
}  // namespace zoetrope::pipeline
