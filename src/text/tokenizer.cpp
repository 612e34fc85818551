// Which file of the folder is used, and the special tokens around the pieces.
#include "text/tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/input_file.h"
#include "base/utf8.h"
#include "text/tokenizer_model.h"

namespace zoetrope::text {

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path)) {
    if (path.extension() == ".json") return Tokenizer(load_tokenizer_json(path));
    if (path.extension() == ".model") return from_sentencepiece(read_file(path), path.string());
    fail("{}: is not a tokenizer; name tokenizer.json, spiece.model, or a folder with one of them", path.string());
  }
  if (const auto json = path / "tokenizer.json"; is_there(json)) return Tokenizer(load_tokenizer_json(json));
  if (const auto model = path / "spiece.model"; is_there(model)) {
    return from_sentencepiece(read_file(model), model.string());
  }
  fail("{}: no tokenizer here; the folder must hold tokenizer.json or spiece.model", path.string());
}

Tokenizer Tokenizer::from_sentencepiece(std::string_view bytes, const std::string& where) {
  return Tokenizer(read_sentencepiece(bytes, where));
}

Tokenizer Tokenizer::from_unigram(const UnigramParts& parts, const std::string& where) {
  return Tokenizer(read_unigram_parts(parts, where));
}

int64_t Tokenizer::most_pieces(int64_t max_length) const {
  const auto around = static_cast<int64_t>(model_->prefix.size() + model_->suffix.size());
  if (max_length < around) {
    fail("the length limit of a prompt is {}, and must be at least {} to hold the special tokens", max_length, around);
  }
  return max_length - around;
}

std::vector<int32_t> Tokenizer::encode(std::string_view clean_text, int64_t max_length) const {
  const int64_t most = most_pieces(max_length);
  decode_utf8_or_fail(clean_text, "the prompt");
  const std::vector<int32_t> pieces = model_->pieces(clean_text);
  const auto kept = std::min<int64_t>(static_cast<int64_t>(pieces.size()), most);
  std::vector<int32_t> ids = model_->prefix;
  ids.insert(ids.end(), pieces.begin(), pieces.begin() + kept);
  ids.insert(ids.end(), model_->suffix.begin(), model_->suffix.end());
  return ids;
}

std::string_view Tokenizer::cut_off(std::string_view clean_text, int64_t max_length) const {
  const auto most = static_cast<size_t>(most_pieces(max_length));
  decode_utf8_or_fail(clean_text, "the prompt");
  std::vector<int32_t> kept = model_->pieces(clean_text);
  if (kept.size() <= most) return {};
  kept.resize(most);
  std::vector<size_t> starts;  // of characters
  for (size_t i = 0; i < clean_text.size(); ++i)
    if ((static_cast<unsigned char>(clean_text[i]) & 0xC0) != 0x80) starts.push_back(i);
  // Pieces do not say where in the text they end, so the end is searched: near the prefix with that many pieces, the
  // longest prefix that gives the kept pieces, or else the longest that gives no more. The number of pieces is not
  // monotonic within words.
  constexpr size_t kAround = 32;  // characters, more than a word has as a rule
  const auto beginning = [&](size_t start) { return model_->pieces(clean_text.substr(0, start)); };
  const auto fits = [&](size_t start) { return beginning(start).size() <= most; };
  const auto about = static_cast<size_t>(std::partition_point(starts.begin(), starts.end(), fits) - starts.begin());
  std::optional<size_t> end;
  for (size_t i = std::min(starts.size(), about + kAround); i > about - std::min(about, kAround);) {
    const std::vector<int32_t> pieces = beginning(starts[--i]);
    if (pieces == kept) return clean_text.substr(starts[i]);
    if (!end && pieces.size() <= most) end = starts[i];
  }
  return clean_text.substr(end.value_or(0));
}

int32_t Tokenizer::pad_id() const { return model_->pad_id; }
int32_t Tokenizer::eos_id() const { return model_->eos_id; }
int64_t Tokenizer::vocab_size() const { return model_->vocab_size; }

}  // namespace zoetrope::text
