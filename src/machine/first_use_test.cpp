#include "machine/first_use.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/test_folder.h"
#include "machine/layer_work.h"
#include "machine/test_figures.h"

namespace zoetrope::machine {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// ---- the time that is spent, on a clock that work alone moves ----

struct FakeClock {
  double now = 0;
  Clock clock() {
    return [this] { return now; };
  }
};

TEST(FirstUseTime, SharesAreDealtOutOfWhatIsLeft) {
  FakeClock time;
  Budget budget(3, 3, time.clock());
  EXPECT_DOUBLE_EQ(budget.deadline(1), 1);
  time.now = 0.5;  // it took less: the others have more
  EXPECT_DOUBLE_EQ(budget.deadline(1), 0.5 + 2.5 / 2);
  time.now = 2.75;  // it took more: the last has less
  EXPECT_DOUBLE_EQ(budget.deadline(1), 3);
  time.now = 4;
  EXPECT_DOUBLE_EQ(budget.deadline(1), 4) << "nothing is left";
  EXPECT_DOUBLE_EQ(budget.left(), -1);
}

// Whatever the shares take, the whole is over in time, but for the run that was under way.
TEST(FirstUseTime, StaysWithinTheBudget) {
  for (const double run : {1e-4, 0.01, 0.1, 0.5}) {
    FakeClock time;
    const std::vector<double> shares{0.4, 0.35, 0.35, 0.2};
    Budget budget(3, 1.3, time.clock());
    int runs = 0;
    for (const double share : shares) {
      const std::function<double()> work = [&] {
        time.now += run;
        ++runs;
        return 1.0;
      };
      best_rates(time.clock(), budget.deadline(share), {&work, 1}, {});
    }
    EXPECT_LE(time.now, 3 + run) << run;
    EXPECT_GE(runs, 4) << "every figure is found";
  }
}

TEST(FirstUseTime, TheBestRepeatCounts) {
  FakeClock time;
  const std::vector<double> seconds{0.01, 0.4, 0.2, 0.1, 0.3};  // the first is the warm-up, and fast for once
  size_t run = 0;
  int beats = 0;
  const std::function<double()> work = [&] {
    time.now += seconds[std::min(run++, seconds.size() - 1)];
    return 2.0;
  };
  EXPECT_DOUBLE_EQ(best_rates(time.clock(), 1.1, {&work, 1}, [&] { ++beats; })[0], 2 / 0.1);
  EXPECT_EQ(run, 5U);
  EXPECT_EQ(beats, 5);
  // No time for another: then the warm-up is what there is.
  time.now = run = 0;
  EXPECT_DOUBLE_EQ(best_rates(time.clock(), 0.005, {&work, 1}, {})[0], 2 / 0.01);
  EXPECT_EQ(run, 1U);
}

TEST(FirstUseTime, WorksRunInTurns) {
  FakeClock time;
  std::string order;
  const std::function<double()> works[] = {[&] {
                                             order += 'a';
                                             time.now += order.size() == 3 ? 0.1 : 0.2;
                                             return 1.0;
                                           },
                                           [&] {
                                             order += 'b';
                                             time.now += 0.25;
                                             return 1.0;
                                           }};
  const std::vector<double> rates = best_rates(time.clock(), 1.3, works, {});
  EXPECT_EQ(order, "ababab");
  ASSERT_EQ(rates.size(), 2U);
  EXPECT_NEAR(rates[0], 1 / 0.1, 1e-9);
  EXPECT_NEAR(rates[1], 1 / 0.25, 1e-9);
}

TEST(FirstUseTime, SizesFollowFromWhatTheyTake) {
  const std::vector<int64_t> sizes{1024, 256, 64};
  const auto at = [&](double rate, double seconds) {
    return size_within(
        sizes, [&](int64_t size) { return static_cast<double>(size) / rate; }, 4, seconds);
  };
  EXPECT_EQ(at(1e4, 0.5), 1024);
  EXPECT_EQ(at(1e4, 0.4), 256);
  EXPECT_EQ(at(1e3, 0.5), 64);
  EXPECT_EQ(at(1, 0.5), 64) << "the least, however slow";
}

// ---- what is measured when, with measurements that are made up ----

class FirstUseTest : public testing::Test {
 protected:
  FirstUseTest() {
    for (const char* name : {kCache, kMeasure}) {
      const char* before = std::getenv(name);
      if (before != nullptr) before_.emplace_back(name, before);
    }
    ::setenv(kCache, cache_.path().c_str(), 1);
    ::unsetenv(kMeasure);
  }
  ~FirstUseTest() override {
    ::unsetenv(kCache);
    ::unsetenv(kMeasure);
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

  static std::filesystem::path path() { return figures_path(this_machine()); }
  // What this process has measured belongs to a folder: with the same files in another it knows what another process
  // would.
  void forget_process() {
    const std::filesystem::path next = cache_ / fmt::format("process {}", ++processes_);
    std::filesystem::create_directories(next);
    if (std::filesystem::exists(path().parent_path()))
      std::filesystem::copy(path().parent_path(), next / "zoetrope", std::filesystem::copy_options::recursive);
    ::setenv(kCache, next.c_str(), 1);
  }

  std::optional<KnownMachine> know(const Figures& found, bool worth = true) {
    notes_.clear();
    FirstUse use;
    use.worth_measuring = worth;
    use.measure = [&](const Heartbeat&) {
      ++measurements_;
      return found;
    };
    return known_machine(use, notes_);
  }
  static Figures with_share(double speed, double share) {
    Figures figures = test_figures(speed);
    figures.core_share = share;
    return figures;
  }

  static constexpr const char* kCache = "XDG_CACHE_HOME";
  static constexpr const char* kMeasure = "ZOETROPE_MEASURE";
  const TestFolder cache_;
  std::vector<std::pair<std::string, std::string>> before_;
  std::vector<std::string> notes_;
  int measurements_ = 0, processes_ = 0;
};

TEST_F(FirstUseTest, MeasuresOnceAndRemembers) {
  const auto first = know(test_figures(1));
  ASSERT_TRUE(first);
  EXPECT_THAT(first->notes, ElementsAre(HasSubstr("measured just now")));
  EXPECT_TRUE(std::filesystem::exists(path()));
  forget_process();
  const auto second = know(test_figures(2));
  ASSERT_TRUE(second);
  EXPECT_EQ(measurements_, 1);
  EXPECT_EQ(second->figures.copy, first->figures.copy);
  EXPECT_EQ(second->date, first->date);
  EXPECT_THAT(second->notes, IsEmpty());
}

TEST_F(FirstUseTest, MeasuresOnlyWhereItIsWorthIt) {
  EXPECT_FALSE(know(test_figures(1), false));
  EXPECT_EQ(measurements_, 0);
  EXPECT_FALSE(std::filesystem::exists(path()));
  know(test_figures(1));
  forget_process();
  EXPECT_TRUE(know(test_figures(1), false)) << "what is remembered costs nothing";
  EXPECT_EQ(measurements_, 1);
}

TEST_F(FirstUseTest, AnEnvironmentVariableForbidsIt) {
  ::setenv(kMeasure, "no", 1);
  EXPECT_FALSE(know(test_figures(1)));
  EXPECT_EQ(measurements_, 0);
  ::setenv(kMeasure, "never", 1);
  EXPECT_THAT(error_of([&] { know(test_figures(1)); }), HasSubstr("ZOETROPE_MEASURE=never"));
}

TEST_F(FirstUseTest, ADamagedFileIsMeasuredAgain) {
  std::filesystem::create_directories(path().parent_path());
  std::ofstream(path()) << "{\"format\": 1";
  ASSERT_TRUE(know(test_figures(1)));
  EXPECT_EQ(measurements_, 1);
  EXPECT_TRUE(recall(path(), this_machine()));
}

TEST_F(FirstUseTest, AFolderThatCannotBeWrittenIsANote) {
  cache_.write("zoetrope", "a file where the folder would be");
  const auto known = know(test_figures(1));
  ASSERT_TRUE(known);
  EXPECT_THAT(known->notes, ElementsAre(HasSubstr("measured just now"), HasSubstr("cannot be remembered")));
  // Nor does this process wait for it again.
  ASSERT_TRUE(know(test_figures(1)));
  EXPECT_EQ(measurements_, 1);
}

TEST_F(FirstUseTest, ABusyMachineIsMeasuredAgainAndTheBestKept) {
  const auto busy = know(with_share(1, 0.6));
  ASSERT_TRUE(busy);
  EXPECT_THAT(busy->notes, Contains(HasSubstr("others had 40 % of the cores")));
  forget_process();
  const auto slower = know(with_share(0.5, 0.7));
  ASSERT_TRUE(slower);
  EXPECT_EQ(slower->figures.copy, test_figures(1).copy) << "the better one is kept";
  forget_process();
  const auto idle = know(with_share(2, 0.99));
  EXPECT_EQ(idle->figures.copy, test_figures(2).copy);
  EXPECT_EQ(measurements_, 3);
  forget_process();
  know(with_share(3, 1));
  EXPECT_EQ(measurements_, 3) << "an idle machine is measured once";
}

TEST_F(FirstUseTest, AMachineThatIsAlwaysBusyIsNotMeasuredForEver) {
  for (int process = 0; process < 20; ++process) {
    forget_process();
    know(with_share(1, 0.6));
  }
  EXPECT_LE(measurements_, 5);
  EXPECT_GE(measurements_, 2);
}

TEST_F(FirstUseTest, WhatCannotBeMeasuredIsANote) {
  FirstUse use;
  use.measure = [](const Heartbeat&) -> Figures { fail("others have 80 % of its cores"); };
  std::vector<std::string> notes;
  EXPECT_FALSE(known_machine(use, notes));
  EXPECT_THAT(notes, ElementsAre(HasSubstr("others have 80 %")));
  EXPECT_FALSE(std::filesystem::exists(path())) << "the next use tries again";
  EXPECT_TRUE(know(test_figures(1)));
}

TEST_F(FirstUseTest, DoubtMeasuresAgain) {
  doubt_machine();  // of nothing
  know(test_figures(1));
  forget_process();
  doubt_machine();
  const auto known = know(test_figures(2));
  ASSERT_TRUE(known);
  EXPECT_EQ(measurements_, 2);
  EXPECT_EQ(known->figures.copy, test_figures(2).copy);
  forget_process();
  know(test_figures(2));
  EXPECT_EQ(measurements_, 2) << "and then no more";
}

// The one measurement of this machine here: nothing is said of its figures but that they are some.
TEST_F(FirstUseTest, EveryFigureIsFound) {
  Figures figures;
  try {
    int beats = 0;
    figures = measure_machine([&] { ++beats; });
    EXPECT_GT(beats, 5);
  } catch (const Error& busy) {
    GTEST_SKIP() << busy.what();
  }
  remember(path(), this_machine(), {figures, "2026-01-02", 1});
  EXPECT_TRUE(recall(path(), this_machine())) << "all within bounds";
  EXPECT_NE(figures.bf16.int8_gain, 1);
  EXPECT_EQ(figures.float32.int8_gain, 1);
  EXPECT_NE(figures.bf16.int8_attention_gain, 1);
  EXPECT_EQ(figures.float32.int8_attention_gain, 1);
}

}  // namespace
}  // namespace zoetrope::machine
