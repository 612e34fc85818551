#include "pipeline/model_files/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace zoetrope::pipeline {
namespace {

// Of tokenizer.ggml.token_type.
enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kUserDefined = 4, kByte = 6 };

class Reader {
 public:
  explicit Reader(const io::TensorFile& file) : file_(file), where_(file.path().string()) {}

  text::Tokenizer read() const {
    if (value("model") != "t5") {
      fail("{}: its tokenizer is of the kind '{}', but the text encoder needs 't5'; name another as tokenizer=FILE",
           where_, value("model"));
    }
    require_only_the_closing_token();
    const std::vector<std::string> tokens = strings("tokens");
    const auto scores = numbers<float>("scores", "f32", tokens.size());
    const auto types = numbers<int32_t>("token_type", "i32", tokens.size());
    text::UnigramParts parts;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!std::isfinite(scores[i])) fail("{}: score {} of {}scores is {}", where_, i, kPrefix, scores[i]);
      parts.pieces.push_back({tokens[i], scores[i], use(types[i], i)});
    }
    parts.precompiled_charsmap = charsmap();
    parts.add_space_prefix = flag("add_space_prefix", parts.add_space_prefix);
    parts.remove_extra_whitespaces = flag("remove_extra_whitespaces", parts.remove_extra_whitespaces);
    parts.unknown_id = unknown_id(types);
    parts.eos_id = id("eos_token_id", parts.eos_id);
    parts.pad_id = id("padding_token_id", parts.pad_id);
    return text::Tokenizer::from_unigram(parts, where_);
  }

 private:
  static constexpr const char* kPrefix = "tokenizer.ggml.";

  std::string value(const std::string& key) const {
    const auto found = file_.metadata().find(kPrefix + key);
    return found == file_.metadata().end() ? "" : found->second;
  }

  bool flag(const std::string& key, bool otherwise) const {
    const std::string text = value(key);
    if (text.empty()) return otherwise;
    if (text != "true" && text != "false") fail("{}: {}{} must be true or false", where_, kPrefix, key);
    return text == "true";
  }

  // Those around a prompt are the ones that the text encoder was trained with.
  void require_only_the_closing_token() const {
    if (flag("add_bos_token", false)) {
      fail("{}: {}add_bos_token is true, but the text encoder knows no token before a prompt", where_, kPrefix);
    }
    if (!flag("add_eos_token", true)) {
      fail("{}: {}add_eos_token is false, but the text encoder needs </s> after a prompt", where_, kPrefix);
    }
  }

  text::UnigramParts::Use use(int32_t type, size_t token) const {
    if (type < kNormal || type > kByte) {
      fail("{}: {}token_type of token {} is {}, but must be from {} to {}", where_, kPrefix, token, type, int{kNormal},
           int{kByte});
    }
    if (type == kNormal) return text::UnigramParts::Use::kByScore;
    return type == kUserDefined ? text::UnigramParts::Use::kAlways : text::UnigramParts::Use::kNever;
  }

  int32_t unknown_id(const std::vector<int32_t>& types) const {
    const auto found = std::find(types.begin(), types.end(), kUnknown);
    const int32_t unknown = id("unknown_token_id", found == types.end() ? -1 : int32_t(found - types.begin()));
    if (unknown < 0) {
      fail("{}: {}unknown_token_id is missing, and no token_type is {} (unknown)", where_, kPrefix, int{kUnknown});
    }
    return unknown;
  }

  int32_t id(const std::string& key, int32_t otherwise) const {
    const std::string text = value(key);
    if (text.empty()) return otherwise;
    const bool digits = text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
    if (!digits) fail("{}: {}{} is '{}', which is not a token's id", where_, kPrefix, key, text);
    return static_cast<int32_t>(std::stol(text));
  }

  const io::MetadataList& list(const std::string& key, std::string_view type) const {
    const io::MetadataList* found = file_.list(kPrefix + key);
    if (found == nullptr) fail("{}: its tokenizer has no {}{}; name another as tokenizer=FILE", where_, kPrefix, key);
    if (found->type != type)
      fail("{}: {}{} is a list of {}, but must be of {}", where_, kPrefix, key, found->type, type);
    return *found;
  }

  std::vector<std::string> strings(const std::string& key) const {
    const io::MetadataList& found = list(key, "string");
    std::string_view rest = file_.bytes(found);
    std::vector<std::string> values;
    for (uint64_t i = 0; i < found.count; ++i) {  // whose lengths the reader of the header has checked
      uint64_t length = 0;
      std::memcpy(&length, rest.data(), sizeof length);
      values.emplace_back(rest.substr(sizeof length, length));
      rest.remove_prefix(sizeof length + length);
    }
    if (values.empty()) fail("{}: {}{} is empty", where_, kPrefix, key);
    return values;
  }

  template <typename T>
  std::vector<T> numbers(const std::string& key, std::string_view type, size_t count) const {
    const io::MetadataList& found = list(key, type);
    if (found.count != count) {
      fail("{}: {}{} has {} values for {} tokens", where_, kPrefix, key, found.count, count);
    }
    std::vector<T> values(count);
    std::memcpy(values.data(), file_.bytes(found).data(), count * sizeof(T));
    return values;
  }

  std::string charsmap() const {
    constexpr const char* kKey = "precompiled_charsmap";
    const io::MetadataList* found = file_.list(std::string(kPrefix) + kKey);
    if (found == nullptr) return {};
    return std::string(file_.bytes(list(kKey, found->type == "i8" ? "i8" : "u8")));
  }

  const io::TensorFile& file_;
  std::string where_;
};

}  // namespace

std::optional<text::Tokenizer> gguf_tokenizer(const io::TensorFile& file) {
  if (file.list("tokenizer.ggml.tokens") == nullptr) return std::nullopt;
  return Reader(file).read();
}

}  // namespace zoetrope::pipeline
