// Values of keys: numbers, lists "a,b,c" of legal names, counts, and shapes. Refusals name the key, the word and the
// legal values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "problems/attention.h"

namespace zoetrope::bench {

std::vector<std::string> split_words(const char* key, std::string_view text);

// Each word is one of `legal`; "all" means all of them.
std::vector<std::string> choose_words(const char* key, std::string_view text, const std::vector<std::string>& legal);

// "bf16" and "f32", which may be called float32: both are "all". With `int8` also that.
std::vector<std::string> choose_dtypes(const char* key, std::string_view text, bool int8 = false);

// Positive counts, in the given order without duplicates; "all" is `all`.
std::vector<int> parse_counts(const char* key, std::string_view text, int all, int limit);

// "65536", "64K", "16M", "1G" (powers of 1024), in the given order.
std::vector<int64_t> parse_byte_sizes(const char* key, std::string_view text);

// Names of groups of problems/attention.h, or shapes: "1x4096x2x128" is B×S×H×D;
// "1x8190x2x128:kv=512", ":lengths=0.75" and ":mask=0.75" (the share of valid keys) may follow.
std::vector<problems::AttentionShape> parse_shapes(const char* key, std::string_view text);

}  // namespace zoetrope::bench
