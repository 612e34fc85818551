#include "bench/words.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/options.h"
#include "base/words.h"

namespace zoetrope::bench {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 22;
constexpr int64_t kMostHeads = 1024;
constexpr int64_t kMostHeadDim = 1024;
constexpr int64_t kMostBatch = 1024;
constexpr int64_t kMostElements = int64_t{1} << 32;

std::vector<std::string> shape_groups() {
  std::vector<std::string> groups;
  for (const problems::AttentionShape& shape : problems::kAttentionShapes) {
    if (groups.empty() || groups.back() != shape.group) groups.emplace_back(shape.group);
  }
  return groups;
}

int64_t extent(const char* key, std::string_view word, std::string_view text, const char* name, int64_t most) {
  const auto value = to_number<int64_t>(text);
  if (!value || *value < 1 || *value > most) {
    fail("{}: '{}' in '{}' is not a {}; 1 to {} is", key, text, word, name, most);
  }
  return *value;
}

double share(const char* key, std::string_view word, std::string_view text) {
  const auto value = to_number<double>(text);
  if (!value || !(*value > 0 && *value <= 1)) {
    fail("{}: '{}' in '{}' is not a share of valid keys; a number above 0, up to 1 is", key, text, word);
  }
  return *value;
}

problems::AttentionShape parse_shape(const char* key, std::string_view word) {
  const std::vector<std::string_view> parts = split(word, ':');
  const std::vector<std::string_view> sizes = split(parts[0], 'x');
  if (sizes.size() != 4) {
    fail("{}: '{}' is neither a group ({}) nor a shape BxSxHxD such as 1x4096x2x128", key, word,
         fmt::join(shape_groups(), ", "));
  }
  problems::AttentionShape shape{"own", 0, 0, 0, 0, 0, 0, 0};
  shape.batch = extent(key, word, sizes[0], "batch", kMostBatch);
  shape.queries = shape.keys = extent(key, word, sizes[1], "number of tokens", kMostTokens);
  shape.heads = extent(key, word, sizes[2], "number of heads", kMostHeads);
  shape.head_dim = extent(key, word, sizes[3], "head size", kMostHeadDim);
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = std::min(parts[i].find('='), parts[i].size());
    const std::string_view name = parts[i].substr(0, equals);
    const std::string_view value = equals < parts[i].size() ? parts[i].substr(equals + 1) : std::string_view();
    if (name == "kv") {
      shape.keys = extent(key, word, value, "number of keys", kMostTokens);
    } else if (name == "lengths") {
      shape.key_lengths = share(key, word, value);
    } else if (name == "mask") {
      shape.key_mask = share(key, word, value);
    } else {
      fail("{}: '{}' in '{}' is unknown; kv=, lengths= and mask= may follow a shape", key, parts[i], word);
    }
  }
  if (shape.key_lengths > 0 && shape.key_mask > 0) fail("{}: '{}' has two masks; one is the most", key, word);
  const int64_t tokens = std::max(shape.queries, shape.keys);
  if (shape.batch * tokens > kMostElements / (shape.heads * shape.head_dim)) {
    fail("{}: '{}' has more than {} elements in one tensor", key, word, kMostElements);
  }
  return shape;
}

}  // namespace

std::vector<std::string> split_words(const char* key, std::string_view text) {
  std::vector<std::string> words;
  for (const std::string_view word : split(text, ',')) {
    if (word.empty()) fail("{}: '{}' has an empty word; words are separated by single commas", key, text);
    words.emplace_back(word);
  }
  return words;
}

std::vector<std::string> choose_words(const char* key, std::string_view text, const std::vector<std::string>& legal) {
  if (text == "all") return legal;
  std::vector<std::string> words = split_words(key, text);
  for (const std::string& word : words) {
    if (std::find(legal.begin(), legal.end(), word) != legal.end()) continue;
    const std::string nearest = nearest_name(word, legal);
    fail("{}: there is no '{}'{}; there are: {}, and all", key, word,
         nearest.empty() ? "" : fmt::format(" (did you mean '{}'?)", nearest), fmt::join(legal, ", "));
  }
  return words;
}

std::vector<std::string> choose_dtypes(const char* key, std::string_view text, bool int8) {
  if (text == "all") return {"bf16", "f32"};
  std::vector<std::string> words = split_words(key, text);
  for (std::string& word : words) word = dtype_spelling(word);
  for (std::string& word : words) {
    const bool known = int8 && word == "int8";
    if (!known && choose_words(key, word, {"bf16", "float32"}).front() == "float32") word = "f32";
  }
  return words;
}

std::vector<int> parse_counts(const char* key, std::string_view text, int all, int limit) {
  std::vector<int> counts;
  for (const std::string& word : split_words(key, text)) {
    const auto value = word == "all" ? std::optional<int>(all) : to_number<int>(word);
    if (!value || *value < 1 || *value > limit)
      fail("{}: '{}' is not a count from 1 to {}, nor 'all'", key, word, limit);
    if (std::find(counts.begin(), counts.end(), *value) == counts.end()) counts.push_back(*value);
  }
  return counts;
}

std::vector<int64_t> parse_byte_sizes(const char* key, std::string_view text) {
  constexpr std::string_view kUnits = "KMG";
  constexpr int64_t kMost = int64_t{4} << 30;
  std::vector<int64_t> sizes;
  for (const std::string& word : split_words(key, text)) {
    const size_t unit = kUnits.find(word.back());
    const bool has_unit = unit != std::string_view::npos;
    const auto value = to_number<int64_t>(std::string_view(word).substr(0, word.size() - (has_unit ? 1 : 0)));
    const int64_t scale = has_unit ? int64_t{1} << (10 * (unit + 1)) : 1;
    if (!value || *value < 1 || *value > kMost / scale) {
      fail("{}: '{}' is not a size in bytes; 65536, 64K, 16M and up to 4G are", key, word);
    }
    sizes.push_back(*value * scale);
  }
  return sizes;
}

std::vector<problems::AttentionShape> parse_shapes(const char* key, std::string_view text) {
  const std::vector<std::string> groups = shape_groups();
  std::vector<problems::AttentionShape> shapes;
  for (const std::string& word : split_words(key, text)) {
    if (std::find(groups.begin(), groups.end(), word) == groups.end()) {
      shapes.push_back(parse_shape(key, word));
      continue;
    }
    for (const problems::AttentionShape& shape : problems::kAttentionShapes) {
      if (word == shape.group) shapes.push_back(shape);
    }
  }
  return shapes;
}

}  // namespace zoetrope::bench
