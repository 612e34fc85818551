// Properties of programs for every U × R ≤ 16, uneven tokens and heads, every direction, head chunks, online and
// fixed-max softmax; a program that was tampered with shows that each is noticed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallel/test_program.h"

namespace zoetrope::parallel {
namespace {

using testing::HasSubstr;

TEST(Program, HoldsItsPropertiesForEveryLayout) {
  for (int ulysses = 1; ulysses <= 16; ++ulysses)
    for (int ring = 1; ulysses * ring <= 16; ++ring)
      for (const int64_t tokens : {1, ulysses * ring - 1, ulysses * ring + 1, 3 * ulysses * ring + 2})
        for (const int64_t heads : {ulysses, 2 * ulysses + 1})
          for (const Direction direction : kDirections)
            for (const int chunks : {1, 2, 3})
              for (const Softmax softmax : kSoftmaxes) {
                const bool gathers = softmax == Softmax::kFixedMax;
                if (tokens < 1 || (ring == 1 && (direction != Direction::kForward || gathers))) continue;
                Sizes sizes{2, tokens, heads, 8, 2};
                sizes.log_sum_exp = tokens % 2 == 1;
                if (heads > ulysses) sizes.kv_vector_bytes = 12;  // an int8 vector of 8
                for (const ContextLayout& layout : in_shards({ulysses, ring, direction, chunks})) {
                  ASSERT_EQ(anything_wrong(make_programs(sizes, layout, softmax), sizes, layout, gathers), "")
                      << fmt::format("{}, {} tokens, {} heads", text(layout, softmax), tokens, heads);
                }
              }
}

// In cross-attention a rank attends its rows at once and sends nothing.
TEST(Program, KeysOfTheirOwnAreAttendedAtOnce) {
  Sizes sizes{2, 5, 3, 8, 2};
  sizes.key_tokens = 7;
  const AttentionProgram program = attention_program(sizes, {1, 1, Direction::kForward, 2}, Softmax::kFixedMax, 0);
  EXPECT_TRUE(program.transfers.empty());
  ASSERT_EQ(program.ops.size(), 2u);
  for (const Op& op : program.ops) EXPECT_EQ(op.kind, Kind::kAttend);
  EXPECT_EQ(wrongly_folded(program, sizes.key_tokens), "");
  EXPECT_EQ(program.buffers[static_cast<size_t>(program.chunks[0].kv.buffer)], 7 * 2 * 2 * 2 * 8 * 2);
}

// Buffers: the own keys and values wide, or the largest block; everything that travels in fewer bytes.
TEST(Program, NarrowedKeysAndValues) {
  Sizes sizes{2, 40, 4, 8, 4};
  const ContextLayout layout{2, 2, Direction::kForward, 2};
  const AttentionProgram whole = attention_program(sizes, layout, Softmax::kOnline, 1);
  EXPECT_EQ(whole.wide.bytes, 0);
  sizes.kv_vector_bytes = 12;
  const AttentionProgram program = attention_program(sizes, layout, Softmax::kOnline, 1);
  EXPECT_EQ(program.own_wide.bytes, 10 * 2 * 2 * 4 * 8 * 4);
  EXPECT_EQ(program.wide.bytes, program.own_wide.bytes);  // a block: twice the tokens, a quarter of the heads
  EXPECT_EQ(program.chunks[0].kv.bytes, 20 * 2 * 2 * 1 * 12);
  EXPECT_EQ(whole.chunks[0].kv.bytes, 20 * 2 * 2 * 1 * 8 * 4);
  for (size_t i = 0; i < program.messages.size(); ++i) {
    const Message &narrow = program.messages[i], &wide = whole.messages[i];
    EXPECT_EQ(narrow.at.bytes * (narrow.region == Region::kKV ? 32 : 12), wide.at.bytes * 12);
  }
  // Nothing travels on one rank.
  EXPECT_EQ(attention_program(sizes, {}, Softmax::kOnline, 0).wide.bytes, 0);
}

TEST(Program, FixedMaxWithoutARingHasNoStatistics) {
  const Sizes sizes{1, 9, 4, 8, 2};
  EXPECT_EQ(anything_wrong(make_programs(sizes, {3, 1, Direction::kForward, 2}, Softmax::kFixedMax), sizes, {3, 1},
                           /*gathers=*/false),
            "");
}

std::string text(const AttentionProgram& program) {
  std::string line;
  for (const Op& op : program.ops) {
    constexpr const char* kNames[] = {"pack", "narrow", "post", "wait",   "measure", "combine",
                                      "init", "fold",   "done", "attend", "own",     "unpack"};
    if (!line.empty()) line += ' ';
    line += kNames[static_cast<int>(op.kind)];
    if (op.kind != Kind::kPost && op.kind != Kind::kWait) continue;
    const Transfer& t = program.transfers[static_cast<size_t>(op.index)];
    line += fmt::format(":{}{}", "xshog"[static_cast<int>(t.kind)], t.chunk);
  }
  return line;
}

// The drawing of program.h.
TEST(Program, OrderAsDrawn) {
  const auto order = [](int ulysses, int ring, int chunks, Softmax softmax) {
    return text(attention_program({1, 40, 8, 8, 2}, {ulysses, ring, Direction::kForward, chunks}, softmax, 0));
  };
  EXPECT_EQ(order(2, 2, 2, Softmax::kFixedMax),
            "pack post:x0 "
            "post:x1 wait:x0 measure post:s0 init post:h0 wait:s0 combine fold wait:h0 fold done post:o0 own "
            "wait:x1 measure post:s1 init post:h1 wait:s1 combine fold wait:h1 fold done post:o1 own wait:o0 unpack "
            "wait:o1 unpack");
  EXPECT_EQ(order(4, 1, 1, Softmax::kOnline), "pack post:x0 wait:x0 attend post:o0 own wait:o0 unpack");
  // Without an exchange the statistics of the next chunk travel during compute.
  EXPECT_EQ(order(1, 2, 2, Softmax::kFixedMax),
            "pack measure post:s0 measure post:s1 init post:h0 wait:s0 combine fold wait:h0 fold done "
            "init post:h1 wait:s1 combine fold wait:h1 fold done");
  EXPECT_EQ(order(1, 1, 2, Softmax::kOnline), "attend attend");
  EXPECT_EQ(text(attention_program({1, 40, 8, 8, 2}, {.gather = 4}, Softmax::kFixedMax, 2)),
            "pack post:g0 wait:g0 attend");
  Sizes narrowed{1, 40, 8, 8, 2};
  narrowed.kv_vector_bytes = 12;
  EXPECT_EQ(text(attention_program(narrowed, {.gather = 4}, Softmax::kOnline, 2)),
            "pack narrow post:g0 wait:g0 attend");
  EXPECT_EQ(text(attention_program(narrowed, {1, 2}, Softmax::kOnline, 0)),
            "pack narrow init post:h0 fold wait:h0 fold done");
}

// ---- every property notices a program that breaks it ----

class Tampered : public testing::Test {
 protected:
  inline static const ContextLayout kLayout{2, 4, Direction::kTwoWay, 2};
  static constexpr int64_t kTokens = 35, kHeads = 5;
  static constexpr Sizes kSizes{2, kTokens, kHeads, 8, 2, /*key_tokens=*/0, /*log_sum_exp=*/true};
  Programs programs = make_programs(kSizes, kLayout, Softmax::kFixedMax);
  AttentionProgram& program = programs[3];

  void SetUp() override { ASSERT_EQ(anything_wrong(programs, kSizes, kLayout, true), ""); }

  // The n-th op of a kind, as a position.
  size_t find(Kind kind, int nth = 0) const {
    for (size_t i = 0; i < program.ops.size(); ++i)
      if (program.ops[i].kind == kind && nth-- == 0) return i;
    ADD_FAILURE() << "no such op";
    return 0;
  }
  // Post or Wait of the n-th transfer of a kind.
  size_t find(Kind kind, Transfer::Kind transfer, int nth = 0) const {
    for (size_t i = 0; i < program.ops.size(); ++i)
      if (program.ops[i].kind == kind &&
          program.transfers[static_cast<size_t>(program.ops[i].index)].kind == transfer && nth-- == 0)
        return i;
    ADD_FAILURE() << "no such op";
    return 0;
  }
  const Transfer& transfer(Transfer::Kind kind, int nth = 0) const {
    return program.transfers[static_cast<size_t>(program.ops[find(Kind::kPost, kind, nth)].index)];
  }
  // Of the n-th transfer of a kind.
  Message& send(Transfer::Kind kind, size_t message = 0) { return program.messages[transfer(kind).first + message]; }
  Message& receive(Transfer::Kind kind, int nth = 0) {
    const Transfer& t = transfer(kind, nth);
    return program.messages[t.first + t.sends];
  }
  void erase(size_t op) { program.ops.erase(program.ops.begin() + static_cast<std::ptrdiff_t>(op)); }
  // Moves an op to where another was.
  void move(size_t from, size_t to) {
    const auto begin = program.ops.begin();
    const auto a = begin + static_cast<std::ptrdiff_t>(from), b = begin + static_cast<std::ptrdiff_t>(to);
    if (from < to) std::rotate(a, a + 1, b + 1);
    else std::rotate(b, a, a + 1);
  }
};

TEST_F(Tampered, PostedTwice) {
  program.ops.push_back(program.ops[find(Kind::kPost)]);
  EXPECT_THAT(wrongly_posted(program), HasSubstr("posted twice"));
}

TEST_F(Tampered, NeverWaitedFor) {
  erase(find(Kind::kWait));
  EXPECT_THAT(wrongly_posted(program), HasSubstr("never"));
  EXPECT_NE(misused_memory(program), "");
}

TEST_F(Tampered, WaitedForTwice) {
  program.ops.push_back(program.ops[find(Kind::kWait)]);
  EXPECT_THAT(wrongly_posted(program), HasSubstr("waited for twice"));
}

TEST_F(Tampered, WaitedForBeforePosted) {
  std::swap(program.ops[find(Kind::kPost, Transfer::Kind::kHop)], program.ops[find(Kind::kWait, Transfer::Kind::kHop)]);
  EXPECT_THAT(wrongly_posted(program), HasSubstr("before it is posted"));
}

TEST_F(Tampered, UsedBeforeWaitedFor) {
  move(find(Kind::kWait, Transfer::Kind::kHop), find(Kind::kFold, 1));
  EXPECT_THAT(misused_memory(program), HasSubstr("still arriving"));
}

TEST_F(Tampered, ComputedBeforeTheExchangeArrived) {
  move(find(Kind::kWait, Transfer::Kind::kExchange), find(Kind::kStatistics));
  EXPECT_THAT(misused_memory(program), HasSubstr("still arriving"));
}

TEST_F(Tampered, OutputSentBeforeItIsFinished) {
  move(find(Kind::kPost, Transfer::Kind::kOutput), find(Kind::kFinish));
  EXPECT_THAT(misused_memory(program), HasSubstr("is not there"));
}

// A hop into the buffer that is folded at that moment would change it under the kernel.
TEST_F(Tampered, ReceivedIntoABufferThatIsStillFolded) {
  receive(Transfer::Kind::kHop, 1).at = receive(Transfer::Kind::kHop, 0).at;
  receive(Transfer::Kind::kHop, 1).at.bytes /= 2;
  EXPECT_THAT(misused_memory(program), HasSubstr("still arriving"));
}

TEST_F(Tampered, OutputArrivesWhereKeysAreStillFolded) {
  move(find(Kind::kPost, Transfer::Kind::kOutput), find(Kind::kPost, Transfer::Kind::kHop));
  EXPECT_NE(misused_memory(program), "");
}

TEST_F(Tampered, OutputFinishedIntoAMessageThatIsStillSent) {
  move(find(Kind::kWait, Transfer::Kind::kExchange), find(Kind::kFinish));
  EXPECT_NE(misused_memory(program), "");
}

TEST_F(Tampered, RangeOutsideOfItsBuffer) {
  receive(Transfer::Kind::kExchange).at.offset += 1 << 20;
  EXPECT_THAT(misused_memory(program), HasSubstr("outside"));
}

TEST_F(Tampered, BlockFoldedTwice) {
  ++program.folds[1].count;  // and the first block of the next fold
  EXPECT_THAT(wrongly_folded(program, kTokens), HasSubstr("folded 2 times"));
}

TEST_F(Tampered, BlockLeftOut) {
  --program.folds[1].count;
  EXPECT_THAT(wrongly_folded(program, kTokens), HasSubstr("folded 0 times"));
}

TEST_F(Tampered, FoldedAfterFinish) {
  move(find(Kind::kFold, 2), find(Kind::kFinish));
  EXPECT_THAT(wrongly_folded(program, kTokens), HasSubstr("outside"));
}

TEST_F(Tampered, NeverFinished) {
  erase(find(Kind::kFinish));
  EXPECT_THAT(wrongly_folded(program, kTokens), HasSubstr("not attended"));
}

TEST_F(Tampered, StatisticsCombinedAfterTheFoldThatNeedsThem) {
  move(find(Kind::kCombine), find(Kind::kFold));
  EXPECT_THAT(late_statistics(program, true), HasSubstr("mpwfc"));
  EXPECT_THAT(misused_memory(program), HasSubstr("is not there"));
}

TEST_F(Tampered, StatisticsCombinedBeforeTheyArrived) {
  move(find(Kind::kWait, Transfer::Kind::kStatistics), find(Kind::kCombine));
  EXPECT_THAT(late_statistics(program, true), HasSubstr("mpcwf"));
  EXPECT_THAT(misused_memory(program), HasSubstr("still arriving"));
}

TEST_F(Tampered, StatisticsSentBeforeTheyAreMeasured) {
  move(find(Kind::kPost, Transfer::Kind::kStatistics), find(Kind::kStatistics));
  EXPECT_THAT(late_statistics(program, true), HasSubstr("pmwcf"));
  EXPECT_THAT(misused_memory(program), HasSubstr("is not there"));
}

TEST_F(Tampered, SentToAnotherRank) {
  int& peer = send(Transfer::Kind::kStatistics).peer;
  peer = peer == 3 ? 0 : 3;
  EXPECT_THAT(unmatched(programs, kLayout), HasSubstr("not what is expected"));
}

TEST_F(Tampered, FewerBytesThanExpected) {
  send(Transfer::Kind::kHop).at.bytes -= 1;
  EXPECT_THAT(unmatched(programs, kLayout), HasSubstr("not what is expected"));
}

TEST_F(Tampered, OtherTokensThanExpected) {
  send(Transfer::Kind::kOutput).tokens.begin += 1;
  EXPECT_THAT(unmatched(programs, kLayout), HasSubstr("not what is expected"));
}

TEST_F(Tampered, MessagesInAnotherOrder) {
  std::swap(send(Transfer::Kind::kExchange, 0), send(Transfer::Kind::kExchange, 1));
  EXPECT_THAT(unmatched(programs, kLayout), HasSubstr("not what is expected"));
}

TEST_F(Tampered, SentFromTheWrongPlace) {
  std::swap(send(Transfer::Kind::kExchange, 0).at.offset, send(Transfer::Kind::kExchange, 1).at.offset);
  EXPECT_NE(misused_memory(program), "");
}

TEST_F(Tampered, LogSumExpUnpackedFromTheWrongPlace) {
  program.chunks[0].own_logs.offset -= 4;
  EXPECT_THAT(misused_memory(program), HasSubstr("is not there"));
}

TEST_F(Tampered, LogSumExpNotSentHome) {
  const Transfer& output = transfer(Transfer::Kind::kOutput);
  for (size_t i = 0; i < output.receives; ++i) {
    Message& message = program.messages[output.first + output.sends + i];
    if (message.region == Region::kLogSumExp) message.region = Region::kO;
  }
  EXPECT_THAT(wrongly_unpacked(program, kHeads, Region::kLogSumExp), HasSubstr("0 times"));
}

TEST_F(Tampered, OpsOfOneRankInAnotherOrder) {
  move(find(Kind::kInit), find(Kind::kStatistics));
  EXPECT_THAT(order_differs(programs), HasSubstr("other ops"));
}

// The same programs with keys and values in fewer bits.
class TamperedNarrow : public Tampered {
 protected:
  void SetUp() override {
    Sizes sizes = kSizes;
    sizes.kv_vector_bytes = 12;
    std::ranges::move(make_programs(sizes, kLayout, Softmax::kFixedMax), programs.begin());
    ASSERT_EQ(anything_wrong(programs, sizes, kLayout, true), "");
  }
};

TEST_F(TamperedNarrow, SentBeforeItIsNarrowed) {
  move(find(Kind::kNarrow), find(Kind::kPost));
  EXPECT_THAT(misused_memory(program), HasSubstr("is not there"));
}

TEST_F(TamperedNarrow, NarrowedAfterAnotherBlockIsInItsPlace) {
  program.ops.insert(program.ops.begin() + static_cast<std::ptrdiff_t>(find(Kind::kFold) + 1), {Kind::kNarrow});
  EXPECT_NE(misused_memory(program), "");
}

TEST_F(TamperedNarrow, NeverNarrowed) {
  erase(find(Kind::kNarrow));
  EXPECT_THAT(misused_memory(program), HasSubstr("is not there"));
}

TEST_F(TamperedNarrow, WideKeysOutsideOfTheirBuffer) {
  program.wide.bytes += 1;
  EXPECT_THAT(misused_memory(program), HasSubstr("outside"));
}

TEST_F(Tampered, UnpackedTwiceOrNever) {
  const size_t unpack = find(Kind::kUnpack);
  program.ops.push_back(program.ops[unpack]);
  EXPECT_THAT(wrongly_unpacked(program, kHeads), HasSubstr("2 times"));
  program.ops.pop_back();
  erase(unpack);
  EXPECT_THAT(wrongly_unpacked(program, kHeads), HasSubstr("0 times"));
}

}  // namespace
}  // namespace zoetrope::parallel
