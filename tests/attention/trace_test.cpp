// What a trace shows of an attention: every phase by name, as often as it happens.
#include "trace/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "attention/plan.h"
#include "attention_case.h"
#include "device/stream.h"

namespace zoetrope::attention::testing {
namespace {

TEST(Trace, ShowsEveryPhaseOfEveryChunk) {
  constexpr int kRanks = 4, kChunks = 2, kRing = 2;
  trace::Trace recorded;
  const Case whole({1, 41, 4, 16, DType::kF32});
  comm::run_ranks(kRanks,
                  [&](comm::Communicator& comm) {
                    Stream stream(1, {&recorded, comm.rank()});
                    ContextAttention attention =
                        plan(whole.problem,
                             {.layout = {.ulysses = 2, .head_chunks = kChunks}, .softmax = Softmax::kFixedMax}, comm,
                             stream);
                    Shard shard(whole, attention.tokens());
                    attention.run(shard.q, shard.k, shard.v, {}, shard.o);
                  },
                  {.trace = &recorded});
  const std::string path = ::testing::TempDir() + "attention_trace.json";
  recorded.write(path);
  const nlohmann::json file = nlohmann::json::parse(std::ifstream(path));
  std::map<std::string, int> spans;
  for (const auto& event : file.at("traceEvents"))
    if (event.at("ph") == "X") ++spans[event.at("name")];
  EXPECT_EQ(spans["pack"], kRanks);
  EXPECT_EQ(spans["key statistics"], kRanks * kChunks);
  EXPECT_EQ(spans["attention block"], kRanks * kChunks * kRing);
  EXPECT_EQ(spans["attention finish"], kRanks * kChunks);
  EXPECT_EQ(spans["unpack"], kRanks * kChunks);
  // Their transfers, copies and waits: at least one each.
  for (const char* name : {"ulysses exchange", "ring statistics", "ring hop", "ulysses output exchange"})
    EXPECT_GE(spans[name], kRanks * kChunks) << name;
}

}  // namespace
}  // namespace zoetrope::attention::testing
