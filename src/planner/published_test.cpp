// The shipped profiles against what others have published, and whether these tests could fail at all.
#include "planner/published.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "base/project_folders.h"

namespace zoetrope::planner {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(kSourceFolder) / "configs" / "hardware";
constexpr const char* kTpu = "tpu_v7x_8";

const std::vector<PublishedResult>& results() {
  static const std::vector<PublishedResult> all = compare_published(kFolder);
  return all;
}

HardwareProfile profile(const std::string& name) { return load_hardware(kFolder / (name + ".yml")); }

PublishedRow wan(int data, int ulysses, int ring, int branches) {
  PublishedRow row;
  row.configuration.layout.data = data;
  row.configuration.layout.context = {ulysses, ring};
  row.branches = branches;
  return row;
}

double seconds(const HardwareProfile& hardware, const PublishedRow& row) { return predicted_seconds(row, hardware); }

double largest_error(const HardwareProfile& hardware) {
  double largest = 0;
  for (const PublishedRow& row : published_rows())
    if (row.machine == hardware.name)
      largest = std::max(largest, std::abs(predicted_seconds(row, hardware) / row.seconds - 1));
  return largest;
}

TEST(Published, WorkIsThatOfTheModel) {
  const Work work = published_work(wan(1, 1, 1, 1));
  const double attention = 4.0 * static_cast<double>(work.tokens * work.tokens) * static_cast<double>(work.width);
  EXPECT_EQ(work.tokens, 75600);
  // 4.68 PFLOP of attention and 1.84 of the rest a forward.
  EXPECT_NEAR(attention * static_cast<double>(work.layers), 4.68e15, 0.005e15);
  EXPECT_NEAR((work.linear_flop + work.cross_flop) * static_cast<double>(work.layers), 1.84e15, 0.005e15);
}

TEST(Published, TenStepsOnTpuAreWithinThreePercent) {
  int rows = 0;
  for (const PublishedResult& result : results()) {
    if (result.row.machine != kTpu) continue;
    ++rows;
    EXPECT_LE(std::abs(result.error()), 0.03) << result.row.name << ": " << result.predicted;
  }
  EXPECT_EQ(rows, 10);
}

TEST(Published, AStepLeftOutOfTheFitIsWithinSixPercent) {
  for (const PublishedResult& result : results()) {
    if (result.row.machine != kTpu) continue;
    EXPECT_LE(std::abs(result.left_out_error()), 0.06) << result.row.name << ": " << result.left_out;
  }
}

// The fit finds figures again that made the times, from wherever it starts.
TEST(Published, TheFitFindsWhatMadeTheTimes) {
  const HardwareProfile shipped = profile(kTpu);
  std::vector<PublishedRow> rows;
  for (PublishedRow& row : published_rows()) {
    if (row.machine != kTpu) continue;
    row.seconds = predicted_seconds(row, shipped);
    rows.push_back(row);
  }
  HardwareProfile start = shipped;
  start.token_seconds *= 2;
  start.layer_overhead *= 0.5;
  start.links.back().overlap = 0.9;
  start.bf16.attention = Curve({{4096, 0.3}, {9472, shipped.bf16.attention.at(9472)}});
  const HardwareProfile found = fit(start, rows);
  EXPECT_NEAR(found.token_seconds, shipped.token_seconds, 1e-3 * shipped.token_seconds);
  EXPECT_NEAR(found.layer_overhead, shipped.layer_overhead, 1e-3 * shipped.layer_overhead);
  EXPECT_NEAR(found.links.back().overlap, shipped.links.back().overlap, 1e-3);
  EXPECT_NEAR(found.bf16.attention.at(4096), shipped.bf16.attention.at(4096), 1e-4);
}

TEST(Published, GpuRunsAreWithinFifteenPercentWithOneEfficiency) {
  int rows = 0;
  for (const PublishedResult& result : results()) {
    if (result.row.machine == kTpu) continue;
    ++rows;
    EXPECT_LE(std::abs(result.error()), 0.15) << result.row.machine << " " << result.row.name;
    EXPECT_LE(std::abs(result.left_out_error()), 0.15) << result.row.machine << " " << result.row.name;
  }
  EXPECT_EQ(rows, 11);
}

// Also without any fit: what a user of the profile gets.
TEST(Published, GpuProfilesAsShippedAreWithinFifteenPercent) {
  EXPECT_LE(largest_error(profile("gb200_nvl72")), 0.15);
  EXPECT_LE(largest_error(profile("h100_8")), 0.15);
}

TEST(Published, GpuRunsScaleAsPublishedWithinTenPoints) {
  std::map<std::string, std::pair<double, double>> one;  // published and predicted on one GPU
  int compared = 0;
  for (const PublishedResult& result : results()) {
    if (result.row.machine == kTpu) continue;
    const double ranks = result.row.configuration.layout.ranks();
    if (ranks == 1) one[result.row.machine] = {result.row.seconds, result.predicted};
    if (ranks != 8 && ranks != 16 && ranks != 64) continue;
    ++compared;
    const auto& [published, predicted] = one.at(result.row.machine);
    EXPECT_NEAR(predicted / (ranks * result.predicted), published / (ranks * result.row.seconds), 0.1)
        << result.row.machine << " " << result.row.name;
  }
  EXPECT_EQ(compared, 4);
}

TEST(PublishedOrderings, U2R2BeatsU4OnFourDevicesByAboutTenPercent) {
  const HardwareProfile hardware = profile(kTpu);
  PublishedRow u4 = wan(2, 4, 1, 2);
  u4.configuration.block_q = 8448;
  const double gap = seconds(hardware, u4) / seconds(hardware, wan(2, 2, 2, 2)) - 1;
  EXPECT_GT(gap, hardware.model_error);
  EXPECT_LT(gap, 0.15);
}

TEST(PublishedOrderings, U8AndU4R2AreATieOnEightDevices) {
  const HardwareProfile hardware = profile(kTpu);
  const double u8 = seconds(hardware, wan(1, 8, 1, 1)), u4r2 = seconds(hardware, wan(1, 4, 2, 1));
  EXPECT_LT(std::abs(u8 / u4r2 - 1), hardware.model_error);
}

TEST(PublishedOrderings, U8R2IsBestOnSixteenAndU16Slower) {
  const HardwareProfile hardware = profile("tpu_v7x_16");
  const double best = seconds(hardware, wan(1, 8, 2, 1));
  for (const auto& [ulysses, ring] : {std::pair{16, 1}, {4, 4}, {2, 8}, {1, 16}})
    EXPECT_GT(seconds(hardware, wan(1, ulysses, ring, 1)), best) << "U" << ulysses << "R" << ring;
  // Ranks with 3 of 40 heads keep those with 2 waiting.
  EXPECT_GT(seconds(hardware, wan(1, 16, 1, 1)) / best - 1, hardware.model_error);
}

TEST(PublishedOrderings, FixedMaxIsWorthFourToSevenPercent) {
  const HardwareProfile hardware = profile(kTpu);
  for (PublishedRow row : {wan(2, 2, 2, 2), wan(2, 4, 1, 2), wan(1, 8, 1, 2)}) {
    const double online = seconds(hardware, row);
    row.configuration.softmax = parallel::Softmax::kFixedMax;
    const double gain = 1 - seconds(hardware, row) / online;
    EXPECT_GT(gain, 0.04) << row.configuration.text();
    EXPECT_LT(gain, 0.07) << row.configuration.text();
  }
}

TEST(PublishedOrderings, HeadChunksAreWorthAboutThreePercent) {
  const HardwareProfile hardware = profile(kTpu);
  for (PublishedRow row : {wan(2, 4, 1, 2), wan(1, 8, 1, 1)}) {
    const double whole = seconds(hardware, row);
    row.configuration.layout.context.head_chunks = 2;
    EXPECT_NEAR(1 - seconds(hardware, row) / whole, 0.03, 0.015) << row.configuration.text();
  }
}

TEST(PublishedOrderings, LargeTilesAreWorthAboutNineteenPercent) {
  const HardwareProfile hardware = profile(kTpu);
  PublishedRow row = wan(1, 4, 2, 1);
  const double large = seconds(hardware, row);
  row.configuration.block_q = 4096;
  EXPECT_NEAR(1 - large / seconds(hardware, row), 0.19, 0.04);
}

// Would a wrong model pass? A wrong route, a wrong link, and a wrong efficiency must not.
TEST(PublishedBroken, AWrongRouteIsNoticed) {
  HardwareProfile hardware = profile(kTpu);
  ASSERT_LE(largest_error(hardware), 0.03);
  ASSERT_EQ(hardware.links[1].kind, LinkKind::kMesh);
  hardware.links[1].kind = LinkKind::kSwitch;
  EXPECT_GT(largest_error(hardware), 0.03);
  hardware.links[1].kind = LinkKind::kBus;
  EXPECT_GT(largest_error(hardware), 0.03);
}

TEST(PublishedBroken, ChipsInARowAreNoticed) {
  HardwareProfile hardware = profile(kTpu);
  hardware.links[1].shape = {4, 1, 1};
  EXPECT_GT(largest_error(hardware), 0.03);
}

TEST(PublishedBroken, WrongFiguresAreNoticed) {
  const HardwareProfile shipped = profile(kTpu);
  const auto broken = [&](const char* key, const char* value) {
    HardwareProfile hardware = shipped;
    set_figure(hardware, key, value);
    return largest_error(hardware);
  };
  EXPECT_GT(broken("links.slice.bandwidth", "x0.75"), 0.03);
  EXPECT_GT(broken("links.chip.bandwidth", "x0.1"), 0.03);
  EXPECT_GT(broken("merge_passes", "0"), 0.03);
  EXPECT_GT(broken("layer_overhead", "0"), 0.03);
  EXPECT_GT(broken("token_seconds", "x0.5"), 0.03);
}

TEST(Published, TheTableOfTheDocsIsThatOfTheCode) {
  std::ifstream file(std::filesystem::path(kSourceFolder) / "docs" / "planner.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), testing::HasSubstr(published_table(results())));
}

}  // namespace
}  // namespace zoetrope::planner
