// Cleaning of prompts before they are tokenized. Truncation and translation are elsewhere.
#pragma once

#include <string>
#include <string_view>

namespace zoetrope::text {

// What the reference pipeline does to a prompt: repair of mistaken encodings and of characters that are glitches rather
// than meant (ftfy.fix_text with its defaults: curly quotes, full-width forms, ligatures, control characters, NFC, …),
// HTML references resolved twice, every run of white space one space, none at the ends.
// Throws Error on bytes that are not UTF-8.
std::string clean_prompt(std::string_view utf8);

}  // namespace zoetrope::text
