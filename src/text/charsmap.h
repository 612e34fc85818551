// SentencePiece's precompiled character map: rewrite rules in a double array. Read as the `tokenizers` library reads
// it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope::text {

class Charsmap {
 public:
  // Throws Error if `bytes` are not one. `where` opens the sentence.
  Charsmap(std::string_view bytes, std::string_view where);
  // From tokenizer.json's "precompiled_charsmap".
  static Charsmap from_base64(std::string_view base64, std::string_view where);

  std::string normalize(std::string_view text) const;

 private:
  // The replacement of the shortest key that `chunk` starts with; false if there is none.
  bool transform(std::string_view chunk, std::string_view& replacement) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // each ends in a zero byte
};

}  // namespace zoetrope::text
