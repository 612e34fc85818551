// Which file of the folder counts, and what goes round the pieces.
#include "models/wan/text/tokenizer.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "models/wan/text/tokenizer_model.h"
#include "models/wan/text/utf8.h"

namespace zoetrope::wan {

namespace {

bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;  // what cannot be looked at counts as absent
  return std::filesystem::exists(path, ignored);
}

}  // namespace

Tokenizer Tokenizer::load(const std::filesystem::path& folder) {
  if (const auto json = folder / "tokenizer.json"; is_there(json)) {
    return Tokenizer(load_tokenizer_json(json));
  }
  if (const auto model = folder / "spiece.model"; is_there(model)) {
    return Tokenizer(load_sentencepiece(model));
  }
  fail("{}: no tokenizer here; the folder must hold tokenizer.json or spiece.model", folder.string());
}

std::vector<int32_t> Tokenizer::encode(std::string_view clean_text, int64_t max_length) const {
  const auto around = static_cast<int64_t>(model_->prefix.size() + model_->suffix.size());
  if (max_length < around) {
    fail("the length limit of a prompt is {}, and must be at least {} to hold the special tokens", max_length, around);
  }
  decode_utf8_or_fail(clean_text, "the prompt");
  const std::vector<int32_t> pieces = model_->pieces(clean_text);
  const auto kept = std::min<int64_t>(static_cast<int64_t>(pieces.size()), max_length - around);
  std::vector<int32_t> ids = model_->prefix;
  ids.insert(ids.end(), pieces.begin(), pieces.begin() + kept);
  ids.insert(ids.end(), model_->suffix.begin(), model_->suffix.end());
  return ids;
}

int32_t Tokenizer::pad_id() const { return model_->pad_id; }
int32_t Tokenizer::eos_id() const { return model_->eos_id; }
int64_t Tokenizer::vocab_size() const { return model_->vocab_size; }

}  // namespace zoetrope::wan
