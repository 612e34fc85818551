#include "machine/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/test_folder.h"
#include "machine/test_figures.h"

namespace zoetrope::machine {
namespace {

using testing::HasSubstr;

const MachineKey kKey{"a CPU", 8, "avx2 avx512", "1.2.3"};

std::string text_of(const std::filesystem::path& path) {
  std::ifstream stream(path);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(Figures, AreReadAsTheyWereWritten) {
  const TestFolder folder;
  const auto path = folder / "below/machine.json";
  EXPECT_FALSE(recall(path, kKey));
  remember(path, kKey, {test_figures(1), "2026-01-02", 3});
  const auto again = recall(path, kKey);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->date, "2026-01-02");
  EXPECT_EQ(again->measurements, 3);
  remember(path, kKey, {test_figures(1), "2026-01-02", 0});  // as doubt_machine() leaves them
  EXPECT_TRUE(recall(path, kKey));
  const Figures expected = test_figures(1);
  for (const auto rates : {&Figures::bf16, &Figures::float32}) {
    EXPECT_EQ((again->figures.*rates).peak, (expected.*rates).peak);
    EXPECT_EQ((again->figures.*rates).gemm, (expected.*rates).gemm);
    EXPECT_EQ((again->figures.*rates).gemm_rows, (expected.*rates).gemm_rows);
    EXPECT_EQ((again->figures.*rates).int8_gain, (expected.*rates).int8_gain);
    EXPECT_EQ((again->figures.*rates).attention, (expected.*rates).attention);
    EXPECT_EQ((again->figures.*rates).attention_tokens, (expected.*rates).attention_tokens);
    EXPECT_EQ((again->figures.*rates).fixed_max_gain, (expected.*rates).fixed_max_gain);
    EXPECT_EQ((again->figures.*rates).int8_attention_gain, (expected.*rates).int8_attention_gain);
    EXPECT_EQ((again->figures.*rates).convolution, (expected.*rates).convolution);
  }
  for (const auto figure :
       {&Figures::copy, &Figures::host_read, &Figures::token_seconds, &Figures::layer_overhead, &Figures::core_share})
    EXPECT_EQ(again->figures.*figure, expected.*figure);
}

TEST(Figures, OfAMomentInWhichOthersHadTheCoresAreRefused) {
  const auto refusal = [](const auto& change) {
    Figures figures = test_figures(1);
    change(figures);
    return error_of([&] { check_figures(figures); });
  };
  EXPECT_EQ(refusal([](Figures&) {}), "no error");
  EXPECT_EQ(refusal([](Figures& f) { f.bf16.int8_gain = 20; }),
            "bf16.int8_gain was found to be 20, outside 0.1 to 10: others probably use its cores");
  EXPECT_THAT(refusal([](Figures& f) { f.float32.fixed_max_gain = 0.01; }), HasSubstr("float32.fixed_max_gain"));
  EXPECT_THAT(refusal([](Figures& f) { f.core_share = std::nan(""); }), HasSubstr("core_share"));
}

// A home that machines share, or that outlives a machine, a library or a container's share of the cores.
TEST(Figures, AreOfOneMachine) {
  const TestFolder folder;
  remember(folder / "m.json", kKey, {test_figures(1), "2026-01-02", 1});
  MachineKey cpu = kKey, cores = kKey, isa = kKey, version = kKey;
  cpu.cpu = "another CPU";
  cores.cores = 4;
  isa.isa = "avx2";
  version.version = "1.2.4";
  for (const MachineKey& other : {cpu, cores, isa, version}) {
    EXPECT_NE(figures_path(other), figures_path(kKey));
    EXPECT_FALSE(recall(folder / "m.json", other)) << "the name of a file proves nothing";
  }
  EXPECT_TRUE(recall(folder / "m.json", kKey));
  EXPECT_EQ(figures_path(this_machine()), figures_path(this_machine()));
}

TEST(Figures, DamagedFilesAreNone) {
  const TestFolder folder;
  remember(folder / "m.json", kKey, {test_figures(1), "2026-01-02", 1});
  const std::string whole = text_of(folder / "m.json");
  ASSERT_GT(whole.size(), 200U);
  EXPECT_TRUE(recall(folder.write("x.json", whole), kKey));
  for (size_t length = 0; length + 2 < whole.size(); length += 7)
    EXPECT_FALSE(recall(folder.write("x.json", whole.substr(0, length)), kKey)) << length;
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return recall(folder.write("x.json", text), kKey).has_value();
  };
  EXPECT_TRUE(changed("\"copy\": ", "\"copy\": 1"));
  EXPECT_FALSE(changed("\"copy\": ", "\"copy\": -"));
  EXPECT_FALSE(changed("\"copy\": ", "\"copy\": 1e30, \"was\": "));
  EXPECT_FALSE(changed("\"copy\": ", "\"copy\": \"fast\", \"was\": "));
  EXPECT_FALSE(changed("\"copy\"", "\"cop\""));
  EXPECT_FALSE(changed("\"gemm_rows\": ", "\"gemm_rows\": 0, \"was\": "));
  EXPECT_FALSE(changed("\"format\": 6", "\"format\": 3")) << "measured again";
  EXPECT_FALSE(changed("\"int8_gain\": ", "\"int8_gain\": 1000, \"was\": "));
  EXPECT_FALSE(changed("\"fixed_max_gain\": ", "\"fixed_max_gain\": 1000, \"was\": "));
  EXPECT_FALSE(changed("\"int8_attention_gain\": ", "\"int8_attention_gain\": 1000, \"was\": "));
  EXPECT_FALSE(recall(folder.write("x.json", whole + std::string(1 << 17, ' ')), kKey)) << "longer than any";
}

// None of them is waited for.
TEST(Figures, WhatIsNoFileIsNone) {
  const TestFolder folder;
  EXPECT_FALSE(recall(folder.path(), kKey));
  EXPECT_FALSE(recall({}, kKey));
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(recall(folder / "pipe", kKey));
}

TEST(Figures, CannotBeRememberedWhereNothingCanBeWritten) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { remember({}, kKey, {}); }), HasSubstr("HOME"));
  EXPECT_THAT(error_of([&] { remember(folder.write("file", "x") / "m.json", kKey, {}); }), HasSubstr("folder"));
}

TEST(Figures, TheBetterOfTwo) {
  Figures a = test_figures(1), b = test_figures(2);
  a.bf16.gemm = 9e12;
  a.bf16.gemm_rows = 64;
  a.bf16.int8_gain = 1.5;
  const Figures best = best_of(a, b), other = best_of(b, a);
  for (const Figures& one : {best, other}) {
    EXPECT_EQ(one.bf16.gemm, 9e12);
    EXPECT_EQ(one.bf16.gemm_rows, 64) << "a rate comes with its size";
    EXPECT_EQ(one.bf16.int8_gain, 1.5) << "and with what int8 gains at that size";
    EXPECT_EQ(one.bf16.peak, b.bf16.peak);
    EXPECT_EQ(one.float32.attention, b.float32.attention);
    EXPECT_EQ(one.copy, b.copy);
    EXPECT_EQ(one.token_seconds, b.token_seconds) << "of seconds the fewer";
  }
}

}  // namespace
}  // namespace zoetrope::machine
