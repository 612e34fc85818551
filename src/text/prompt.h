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

// The first part of a prompt that asks for a weight as other programs write it, "(red cat:1.3)"; empty where none does.
// Ratios such as "(16:9)" are none.
std::string_view weighted_part(std::string_view prompt);

}  // namespace zoetrope::text
