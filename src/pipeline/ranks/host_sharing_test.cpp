#include "pipeline/ranks/host_sharing.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "io/weights/formula_source.h"
#include "io/weights/weight_loader.h"
#include "io/weights/weights.h"

namespace zoetrope::pipeline {
namespace {

TEST(HostSharing, AllSeeTheSameZeroedMemory) {
  comm::run_ranks(3, [](comm::Communicator& world) {
    const auto host = host_sharing(world.split(0, world.rank()));
    EXPECT_EQ(host->size(), 3);
    constexpr size_t kBytes = 3 * 4096 + 5;
    const auto buffer = host->allocate(kBytes);
    ASSERT_NE(buffer, nullptr);
    for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(buffer->data()[i], std::byte{0}) << i;
    host->barrier();
    buffer->data()[host->rank()] = std::byte(host->rank() + 1);
    host->barrier();
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(buffer->data()[rank], std::byte(rank + 1));
    EXPECT_TRUE(host->all(true));
    EXPECT_FALSE(host->all(host->rank() != 1));
  });
}

// More weights than processes, and fewer: each is packed by one of them, and all have it.
TEST(HostSharing, EachWeightIsPackedOnce) {
  constexpr int64_t kCount = 1000;
  for (const int count : {1, 2, 7}) {
    std::mutex mutex;
    std::map<std::string, int> packed;
    comm::run_ranks(3, [&](comm::Communicator& world) {
      std::map<std::string, io::Formula> formulas;
      for (int i = 0; i < count; ++i) formulas[fmt::format("w{}", i)] = {{kCount}, 0, 1};
      const auto source = std::make_shared<io::FormulaSource>("test", 3, formulas);
      io::Weights::Loading loading;
      loading.sharing = host_sharing(world.split(0, world.rank()));
      const auto weights = std::make_shared<io::Weights>(source, loading);
      io::WeightLoader loader(weights);
      std::map<std::string, const std::byte*> places;
      for (int i = 0; i < count; ++i) {
        const std::string name = fmt::format("w{}", i);
        const auto pack = [&, name](std::span<const TensorView> stored, int64_t, std::byte* out) {
          std::memcpy(out, stored[0].raw(), stored[0].bytes());
          const std::lock_guard lock(mutex);
          ++packed[name];
        };
        loader.add({{name}, {{kCount}}, "copy", kCount * 4, 0, pack},
                   [&places, name](const std::byte* at) { places[name] = at; });
      }
      int ticks = 0;
      loader.run(2, [&](int64_t, int64_t) {
        ++ticks;
        world.barrier();  // as processes that load together do
      });
      EXPECT_EQ(ticks, count);
      for (const auto& [name, at] : places) {
        const Tensor expected(DType::kF32, {kCount});
        source->read(name, expected);
        EXPECT_EQ(std::memcmp(at, expected.view().raw(), kCount * 4), 0) << name;
      }
      EXPECT_EQ(places.size(), static_cast<size_t>(count));
      world.barrier();
    });
    EXPECT_EQ(packed.size(), static_cast<size_t>(count));
    for (const auto& [name, times] : packed) EXPECT_EQ(times, 1) << name;
  }
}

}  // namespace
}  // namespace zoetrope::pipeline
