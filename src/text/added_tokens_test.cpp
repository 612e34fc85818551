// Expected spans: the `tokenizers` library 0.23.3.
#include "text/added_tokens.h"

#include <gmock/gmock.h>

namespace zoetrope::text {
namespace {

// "text" for plain stretches, "[text]" for tokens, with | between.
std::string shown(const AddedTokens& tokens, std::string_view text) {
  std::string out;
  for (const Span& span : tokens.split(text)) {
    if (!out.empty()) out += '|';
    out += span.id == Trie::kNone ? std::string(span.text) : '[' + std::string(span.text) + ']';
  }
  return out;
}

TEST(AddedTokens, LeftmostThenLongest) {
  const AddedTokens tokens({{"ab", 1}, {"abcd", 2}, {"bc", 3}});
  EXPECT_EQ(shown(tokens, "xabcd"), "x|[abcd]");
  EXPECT_EQ(shown(tokens, "abc"), "[ab]|c");
  EXPECT_EQ(shown(tokens, "xbc"), "x|[bc]");
  EXPECT_EQ(shown(tokens, ""), "");
  EXPECT_EQ(shown(AddedTokens(), "abc"), "abc");
}

TEST(AddedTokens, SingleWord) {
  const AddedTokens tokens({{.content = "ab", .id = 1, .single_word = true}});
  EXPECT_EQ(shown(tokens, "ab, ab_ éab .ab."), "[ab]|, ab_ éab .|[ab]|.");
}

TEST(AddedTokens, SwallowSpaces) {
  EXPECT_EQ(shown(AddedTokens({{.content = "<x>", .id = 1, .lstrip = true}}), "a \u2003<x> b"), "a|[ \u2003<x>]| b");
  EXPECT_EQ(shown(AddedTokens({{.content = "<x>", .id = 1, .rstrip = true}}), "a <x> \u3000b"), "a |[<x> \u3000]|b");
  EXPECT_EQ(shown(AddedTokens({{.content = "<x>", .id = 1, .lstrip = true, .rstrip = true}}), " <x>  <x> "),
            "[ <x>  ]|[<x> ]");
}

TEST(AddedTokens, WhatATokenSwallowedIsGone) {
  EXPECT_EQ(shown(AddedTokens({{.content = "  ", .id = 1, .lstrip = true, .rstrip = true}}), "a    b"), "a|[    ]|b");
}

}  // namespace
}  // namespace zoetrope::text
