#include "base/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zoetrope {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Words, LettersAreLowered) {
  EXPECT_EQ(lower_case("OLoRA_2-é.PNG"), "olora_2-é.png");
  EXPECT_EQ(lower_case(""), "");
}

TEST(Words, CountsAreSingularAndPlural) {
  EXPECT_EQ(counted(1, "thread"), "1 thread");
  EXPECT_EQ(counted(0, "thread"), "0 threads");
  EXPECT_EQ(counted(12, "rank"), "12 ranks");
}

TEST(Words, DurationsHaveTheUnitThatPeopleWouldTake) {
  EXPECT_EQ(duration_text(0), "0 s");
  EXPECT_EQ(duration_text(9.45e-6), "9.45 µs");
  EXPECT_EQ(duration_text(0.000307), "307 µs");
  EXPECT_EQ(duration_text(0.0441), "44.1 ms");
  EXPECT_EQ(duration_text(1), "1 s");
  EXPECT_EQ(duration_text(12.34), "12.3 s");
  EXPECT_EQ(duration_text(245), "4 min 5 s");
  EXPECT_EQ(duration_text(2860), "47 min 40 s");
  EXPECT_EQ(duration_text(40 * 3600 + 12 * 60 + 1), "40 h 12 min");
  EXPECT_EQ(duration_text(-4.76), "-4.76 s");
}

TEST(Words, DurationsThatAreRoundedUpAreInTheNextUnit) {
  EXPECT_EQ(duration_text(0.99951e-3), "1 ms");
  EXPECT_EQ(duration_text(0.9996), "1 s");
  EXPECT_EQ(duration_text(59.96), "1 min 0 s");
  EXPECT_EQ(duration_text(3599.6), "1 h 0 min");
  for (double seconds = 1e-6; seconds < 1e9; seconds *= 1.01)
    EXPECT_EQ(duration_text(seconds).find("e+"), std::string::npos) << seconds;
}

TEST(Words, ShellWordsAreQuotedWhereNeeded) {
  EXPECT_EQ(shell_word("width=832"), "width=832");
  EXPECT_EQ(shell_word("prompt=a cat"), "'prompt=a cat'");
  EXPECT_EQ(shell_word("prompt=it's $HOME"), "'prompt=it'\\''s $HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(Words, SeparatorsAreBetweenParts) {
  EXPECT_THAT(split("a,bc,,d", ','), ElementsAre("a", "bc", "", "d"));
  EXPECT_THAT(split("a,", ','), ElementsAre("a", ""));
  EXPECT_THAT(split("", ','), ElementsAre(""));
}

TEST(Words, TerminatorsEndParts) {
  EXPECT_THAT(split_terminated("a\nb\n", '\n'), ElementsAre("a", "b"));
  EXPECT_THAT(split_terminated("a\n\nb", '\n'), ElementsAre("a", "", "b"));
  EXPECT_THAT(split_terminated("\n", '\n'), ElementsAre(""));
  EXPECT_THAT(split_terminated("", '\n'), IsEmpty());
}

TEST(Words, BlanksAroundATextAreTrimmed) {
  EXPECT_EQ(trimmed(" \ta b\r\n"), "a b");
  EXPECT_EQ(trimmed("a"), "a");
  EXPECT_EQ(trimmed(" \n "), "");
  EXPECT_EQ(trimmed(""), "");
  EXPECT_EQ(trimmed(" a\n", " "), "a\n");
}

TEST(Words, NumbersAreAllOfATextOrNothing) {
  EXPECT_EQ(to_number<int>("-12"), -12);
  EXPECT_EQ(to_number<double>("0.5"), 0.5);
  for (const char* text : {"", " 1", "1 ", "1x", "+1", "99999999999"})
    EXPECT_EQ(to_number<int>(text), std::nullopt) << text;
}

}  // namespace
}  // namespace zoetrope
