#include "pipeline/short_summary.h"

#include <gtest/gtest.h>

namespace zoetrope::pipeline {
namespace {

TEST(ShortSummary, SaysTimeMemoryAndTheLargestDeviation) {
  trace::Timing timing;
  timing.add("Load", 2.5);
  timing.add("Prepare", 0.5);
  timing.add("Inference", 297);
  timing.add("Inference/Conditioning/text encoder", 10);
  timing.add("Inference/Conditioning/VAE encode", 1.5);
  timing.add("Inference/Denoise", 280);
  timing.add("Inference/VAE decode", 7);
  Video result;
  EXPECT_EQ(short_summary(timing, 50, result),
            "Time 5 min 0 s: load 2.5 s, text encoder 10 s, VAE encode 1.5 s, denoise 4 min 40 s (50 steps of 5.6 s), "
            "VAE decode 7 s\n");
  result.memory = {{"VAE", 1'500'000'000, 1'600'000'000}, {"whole", 2'500'000'000, 2'600'000'000}};
  result.predicted = {{"text encoder", 9, 10}, {"denoise", 250, 280}, {"denoise: computing", 250, 280}};
  const std::string text = short_summary(timing, 50, result);
  EXPECT_NE(text.find("\nMemory 2.50 GB at most, 2.60 GB planned\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nPrediction: largest deviation denoise: computing, 30 s more than predicted (+12 %)\n"),
            std::string::npos)
      << text;
}

TEST(ShortSummary, SaysWhatTheExchangeRounded) {
  Video result;
  EXPECT_EQ(kv_rounding_text(result, parallel::KVExchange::kInt8), "");
  result.kv_rounding = {0.00612, 0.0054};
  EXPECT_EQ(kv_rounding_text(result, parallel::KVExchange::kInt8),
            "Exchange of keys and values in int8: off by 0.61 % (keys) and 0.54 % (values) at most\n");
}

TEST(ShortSummary, SaysWhichHeadsWereInInt8) {
  attention::Counters counters;
  EXPECT_EQ(int8_heads_text(counters), "");
  counters.heads_int8 = 300;
  counters.heads_as_computed = 60;
  counters.int8_error = 0.0187;
  EXPECT_EQ(int8_heads_text(counters), "Attention in int8: 83.3 % of heads, off by 1.9 % at most in samples\n");
}

}  // namespace
}  // namespace zoetrope::pipeline
