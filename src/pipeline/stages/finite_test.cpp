#include "pipeline/stages/finite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/test_folder.h"
#include "io/weights/safetensors.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Tensor of(std::initializer_list<float> values) {
  Tensor tensor(DType::kF32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data<float>());
  return tensor;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(RequireFinite, SaysWhatHoldsWhatAndWhere) {
  require_finite(of({1, -2}), "x");
  require_finite({}, "nothing");
  EXPECT_THAT(error_of([] {
                require_finite(of({1, 2, -kInfinity, kInfinity}), "step 3: the latents");
              }),
              AllOf(HasSubstr("step 3: the latents holds -inf at element 2 of [4]"), HasSubstr("check_finite=false")));
}

// The earliest value wins over the lowest rank, and of ranks that have the same one the lowest; all ranks learn it.
TEST(FirstSpoiled, IsTheEarliestValueOfAnyRank) {
  struct Case {
    std::vector<int> first;  // of each rank: the value that it finds; -1: none
    FirstSpoiled::Place place;
  };
  for (const Case& given : {Case{{2, 1, 1}, {"b", 1}}, Case{{-1, -1, 0}, {"a", 2}}, Case{{2, 2, 2}, {"c", 0}}}) {
    comm::run_ranks(3, [&](comm::Communicator& ranks) {
      FirstSpoiled first;
      const int at = given.first[static_cast<size_t>(ranks.rank())];
      const char* names[] = {"a", "b", "c"};
      // In parts, of which ranks have several.
      for (int i = 0; i < 3; ++i)
        for (int part = 0; part <= ranks.rank(); ++part)
          first.look(names[i], of({0, at >= 0 && i >= at ? std::nanf("") : 1.0f}));
      const FirstSpoiled::Place found = first.place(ranks);
      EXPECT_EQ(found.name, given.place.name);
      EXPECT_EQ(found.rank, given.place.rank);
    });
  }
}

// By one rank and by several, in the order of the list; finite values that overflow in bf16 count as what they become.
TEST(SpoiledWeight, IsTheFirstOfTheList) {
  const TestFolder folder;
  io::SafetensorsWriter writer;
  const Tensor good = of({1, 2}), bad = of({1, std::nanf("")}), large = of({0, std::numeric_limits<float>::max()});
  writer.add("a", good);
  writer.add("b", large);
  writer.add("c", bad);
  writer.write(folder / "w.safetensors");
  const io::Checkpoint file = io::Checkpoint::open_file(folder / "w.safetensors");
  const ComponentWeights all({{"a", {2}}, {"b", {2}}, {"c", {2}}}, file);
  const ComponentWeights sound({{"a", {2}}}, file);
  const auto named = [&](const char* name) {
    return fmt::format("weight '{}' in {}", name, (folder / "w.safetensors").string());
  };
  EXPECT_EQ(spoiled_weight(all, DType::kF32, nullptr), named("c"));
  EXPECT_EQ(spoiled_weight(all, DType::kBF16, nullptr), named("b"));
  EXPECT_EQ(spoiled_weight(sound, DType::kF32, nullptr), std::nullopt);
  for (const int count : {2, 5}) {
    comm::run_ranks(count, [&](comm::Communicator& ranks) {
      EXPECT_EQ(spoiled_weight(all, DType::kF32, &ranks), named("c"));
      EXPECT_EQ(spoiled_weight(sound, DType::kF32, &ranks), std::nullopt);
    });
  }
}

}  // namespace
}  // namespace zoetrope::pipeline
