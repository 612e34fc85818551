#include "text/tokenizer.h"
#include "text_changes.h"

namespace zoetrope::fuzz {
namespace {

const char kSmallest[] = R"({"added_tokens": [], "normalizer": null, "post_processor": null,
  "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
  "model": {"type": "Unigram", "unk_id": 2,
            "vocab": [["<pad>", 0], ["</s>", 0], ["<unk>", 0], ["▁a", -1], ["b", -2], ["▁", -3]]}})";

void read(const std::string& bytes) {
  write("tokenizer.json", bytes);
  const text::Tokenizer tokenizer = text::Tokenizer::load(folder());
  for (const char* text : {"", "a b", "  ab é</s> 猫ﬁ\t<extra_id_0>x"}) tokenizer.encode(text, 16);
}

std::string change(const std::string& bytes, Dice& dice) { return changed_json(bytes, kSmallest, dice); }

}  // namespace

const Target kTarget{read, change, {"not valid JSON", "but a JSON object {"}};

}  // namespace zoetrope::fuzz
