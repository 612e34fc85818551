// Expected cuttings: worked out by hand from the scores; the ties as the `tokenizers` library 0.23.3 breaks them.
#include "text/unigram.h"

#include <gmock/gmock.h>

#include <map>
#include <random>

namespace zoetrope::text {
namespace {

using testing::ElementsAre;

std::vector<int32_t> ids_of(const Unigram& model, std::string_view word) {
  std::vector<int32_t> ids;
  model.encode(word, ids);
  return ids;
}

TEST(Trie, FindsWhatWasPutInAndNothingElse) {
  std::mt19937 random(1);
  std::map<std::string, int32_t> keys;
  for (int32_t i = 0; i < 2000; ++i) {
    std::string key;
    for (uint32_t n = random() % 6; n > 0; --n) key.push_back(static_cast<char>(random() % 5 * 50));
    keys[key] = i;
  }
  keys.erase("");
  std::vector<std::pair<std::string_view, int32_t>> entries;
  for (const auto& [key, value] : keys) entries.emplace_back(key, -7 - value);  // the later entry wins
  for (const auto& [key, value] : keys) entries.emplace_back(key, value);
  const Trie trie(entries);
  for (const auto& [key, value] : keys) {
    EXPECT_EQ(trie.find(key), value);
    for (const std::string& other : {key + '\1', key.substr(0, key.size() - 1)}) {
      const auto known = keys.find(other);
      EXPECT_EQ(trie.find(other), known == keys.end() ? Trie::kNone : known->second);
    }
  }
}

TEST(Unigram, BestScoreWins) {
  const Unigram model(
      {{"<unk>", 0}, {"a", 0}, {"b", 0}, {"c", 0}, {"d", 0}, {"cd", 1}, {"ab", 2}, {"abc", 5}, {"abcd", 10}}, 0, false);
  EXPECT_THAT(ids_of(model, "abcdacdxx"), ElementsAre(8, 1, 5, 0));
  EXPECT_THAT(ids_of(model, ""), ElementsAre());
}

TEST(Unigram, OfEqualCuttingsTheEarlierStartStays) {
  const Unigram model({{"<unk>", 0}, {"a", -1}, {"b", -1}, {"c", -1}, {"ab", -2}, {"bc", -2}}, 0, false);
  EXPECT_THAT(ids_of(model, "ab"), ElementsAre(4));
  EXPECT_THAT(ids_of(model, "abc"), ElementsAre(1, 5));
}

TEST(Unigram, UnknownCharactersAreFused) {
  const Unigram model({{"<unk>", 0}, {"a", -1}}, 0, false);
  EXPECT_THAT(ids_of(model, "猫犬a猫"), ElementsAre(0, 1, 0));
}

TEST(Unigram, FusedUnknownsThatSpellAPieceBecomeIt) {
  // "xy" as a piece is worse than two unknowns (-11 each), but the two are looked up together.
  const Unigram model({{"<unk>", 0}, {"a", -1}, {"xy", -100}}, 0, false);
  EXPECT_THAT(ids_of(model, "xy"), ElementsAre(2));
  const Unigram costly({{"<unk>", 0}, {"a", -1}, {"xy", -1000}, {"xyz", -3000}}, 0, false);
  EXPECT_THAT(ids_of(costly, "xyz"), ElementsAre(3));
}

TEST(Unigram, ByteFallbackNeedsAllBytes) {
  std::vector<UnigramPiece> pieces = {{"<unk>", 0}, {"<0xC3>", 0}, {"<0xA9>", 0}};
  EXPECT_THAT(ids_of(Unigram(pieces, 0, true), "é"), ElementsAre(1, 2));
  EXPECT_THAT(ids_of(Unigram(pieces, 0, true), "è"), ElementsAre(0));
  EXPECT_THAT(ids_of(Unigram(pieces, 0, false), "é"), ElementsAre(0));
}

}  // namespace
}  // namespace zoetrope::text
