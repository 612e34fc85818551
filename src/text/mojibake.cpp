// The steps of ftfy 6.3.1 (fix_encoding): encode the text back with each suspected encoding and see whether the bytes
// are UTF-8, after putting back what programs on the way tend to lose.
#include "text/mojibake.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <span>

#include "base/utf8.h"
#include "text/badness.h"
#include "text/encodings.h"

namespace zoetrope::text {

namespace {

struct ByteRange {
  uint8_t first = 1, last = 0;
};

// A set of bytes, as up to six ranges.
struct ByteSet {
  std::array<ByteRange, 6> ranges;
  constexpr bool used() const { return ranges[0].first <= ranges[0].last; }
  constexpr bool holds(char c) const {
    const auto byte = static_cast<uint8_t>(c);
    return std::any_of(ranges.begin(), ranges.end(), [&](ByteRange r) { return r.first <= byte && byte <= r.last; });
  }
};

// Up to six bytes in a row.
using ByteSequence = std::array<ByteSet, 6>;

// The length of the first sequence that stands at bytes[at], or 0.
size_t match_length(std::string_view bytes, size_t at, std::span<const ByteSequence> sequences) {
  for (const ByteSequence& sequence : sequences) {
    size_t length = 0;
    while (length < sequence.size() && sequence[length].used() && at + length < bytes.size() &&
           sequence[length].holds(bytes[at + length])) {
      ++length;
    }
    if (length == sequence.size() || !sequence[length].used()) return length;
  }
  return 0;
}

template <typename Replace>
std::string replace_sequences(std::string_view bytes, std::span<const ByteSequence> sequences, Replace replace) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    if (const size_t length = match_length(bytes, i, sequences)) {
      out += replace(std::string(bytes.substr(i, length)));
      i += length;
    } else {
      out.push_back(bytes[i++]);
    }
  }
  return out;
}

constexpr ByteSet one(uint8_t byte) { return {{{{byte, byte}}}}; }
constexpr ByteSet range(uint8_t first, uint8_t last) { return {{{{first, last}}}}; }

constexpr ByteSet kSpace = one(' ');
constexpr ByteSet kContinuation = range(0x80, 0xBF);
// A continuation that is neither the ellipsis nor the no-break space of Windows-1252.
constexpr ByteSet kUsualContinuation = {{{{0x80, 0x84}, {0x86, 0x9F}, {0xA1, 0xBF}}}};
// Lead bytes that together with A0 are likely characters: no-break space, à, Š, Π, Р, ٠.
constexpr ByteSet kLeadBeforeA0 = {{{{0xC2, 0xC3}, {0xC5, 0xC5}, {0xCE, 0xCE}, {0xD0, 0xD0}, {0xD9, 0xD9}}}};

// UTF-8 but for one A0 that became a space.
constexpr ByteSequence kAlteredUtf8[] = {
    {{kLeadBeforeA0, kSpace}},
    {{range(0xE2, 0xE3), kSpace, kUsualContinuation}},
    {{range(0xE0, 0xE3), kUsualContinuation, kSpace}},
    {{one(0xF0), kSpace, kContinuation, kContinuation}},
    {{one(0xF0), kContinuation, kSpace, kContinuation}},
    {{one(0xF0), kContinuation, kContinuation, kSpace}},
};

constexpr ByteSet kLost = one(0x1A);  // what a sloppy encoding writes for U+FFFD
constexpr ByteSet kLostOrMark = {{{{0x1A, 0x1A}, {'?', '?'}}}};
constexpr ByteSet kLostOrNext = {{{{0x1A, 0x1A}, {0x80, 0xBF}}}};
constexpr ByteSet kAnyNext = {{{{0x1A, 0x1A}, {'?', '?'}, {0x80, 0xBF}}}};

// UTF-8 or CESU-8 with bytes lost on the way; at most one of them as a question mark.
constexpr ByteSequence kLossyUtf8[] = {
    {{range(0xC2, 0xDF), kLost}},
    {{range(0xC2, 0xC3), one('?')}},
    {{one(0xED), range(0xA0, 0xAF), kLostOrMark, one(0xED), range(0xB0, 0xBF), kAnyNext}},
    {{one(0xED), range(0xA0, 0xAF), kAnyNext, one(0xED), range(0xB0, 0xBF), kLostOrMark}},
    {{range(0xE0, 0xEF), kLostOrMark, kLostOrNext}},
    {{range(0xE0, 0xEF), kLostOrNext, kLostOrMark}},
    {{range(0xF0, 0xF4), kLostOrMark, kLostOrNext, kLostOrNext}},
    {{range(0xF0, 0xF4), kLostOrNext, kLostOrMark, kLostOrNext}},
    {{range(0xF0, 0xF4), kLostOrNext, kLostOrNext, kLostOrMark}},
    {{kLost}},
};

// "Ã la" was "à la": there the lost A0 stood before the space, which stays; but not in Portuguese "àquele", "às".
std::string restore_a_grave(std::string_view bytes) {
  constexpr std::string_view kContractions[] = {" ", "quele", "quela", "quilo", "s "};
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    out.push_back(bytes[i]);
    if (!bytes.substr(i).starts_with("\xC3 ")) continue;
    const std::string_view rest = bytes.substr(i + 2);
    const bool contraction = std::any_of(std::begin(kContractions), std::end(kContractions),
                                         [&](std::string_view ending) { return rest.starts_with(ending); });
    if (contraction) continue;
    out += "\xA0 ";
    ++i;
  }
  return out;
}

std::string restore_byte_a0(std::string_view bytes) {
  return replace_sequences(restore_a_grave(bytes), kAlteredUtf8, [](std::string sequence) {
    std::replace(sequence.begin(), sequence.end(), ' ', '\xA0');
    return sequence;
  });
}

std::string replace_lossy_sequences(std::string_view bytes) {
  return replace_sequences(bytes, kLossyUtf8, [](const std::string&) { return "\xEF\xBF\xBD"; });
}

// The length of the run of UTF-8-like sequences that starts at text[at], or 0.
size_t utf8_like_run(std::u32string_view text, size_t at) {
  const auto is = [&](size_t i, uint32_t classes) { return i < text.size() && (char_classes(text[i]) & classes) != 0; };
  if (at > 0 && is(at - 1, kUtf8ContinuationStrict)) return 0;
  const auto continuations = [&](size_t i, size_t count) {
    for (size_t k = 1; k <= count; ++k) {
      if (!is(i + k, kUtf8Continuation)) return false;
    }
    return true;
  };
  size_t end = at;
  for (;;) {
    if (is(end, kUtf8FirstOf2) && continuations(end, 1)) {
      end += 2;
    } else if (is(end, kUtf8FirstOf3) && continuations(end, 2)) {
      end += 3;
    } else if (is(end, kUtf8FirstOf4) && continuations(end, 3)) {
      end += 4;
    } else {
      return end - at;
    }
  }
}

// Mistaken runs inside of text that is otherwise right, each repaired by itself.
std::u32string decode_inconsistent_utf8(const std::u32string& text) {
  std::u32string out;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_like_run(text, i);
    if (length == 0) {
      out.push_back(text[i++]);
      continue;
    }
    std::u32string run = text.substr(i, length);
    // Shorter than the whole, or this would call itself for ever.
    out += length < text.size() && looks_mistaken(run) ? fix_encoding(std::move(run)) : run;
    i += length;
  }
  return out;
}

// The text if its bytes in this encoding are UTF-8 or nearly so.
std::optional<std::u32string> reinterpret(std::string bytes, const OneByteEncoding& encoding) {
  // In MacRoman a dash followed by a space would look like a lost A0.
  if (encoding.name() != "macroman") bytes = restore_byte_a0(bytes);
  if (encoding.sloppy()) bytes = replace_lossy_sequences(bytes);
  const bool variants = bytes.find('\xED') != std::string::npos || bytes.find('\xC0') != std::string::npos;
  return variants ? decode_utf8_variants(bytes) : decode_utf8(bytes);
}

bool is_c1_control(char32_t c) { return c >= 0x80 && c <= 0x9F; }

std::u32string fix_encoding_once(const std::u32string& text) {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char32_t c) { return c < 0x80; });
  if (ascii || !looks_mistaken(text)) return text;

  for (const OneByteEncoding& encoding : suspected_encodings()) {
    std::optional<std::string> bytes = encoding.encode(text);
    if (!bytes) continue;
    if (auto fixed = reinterpret(*std::move(bytes), encoding)) return *std::move(fixed);
  }
  if (std::u32string fixed = decode_inconsistent_utf8(text); fixed != text) return fixed;
  // What is left is mostly Latin-1 that was meant as Windows-1252.
  return fix_c1_controls(text);
}

}  // namespace

std::u32string fix_encoding(std::u32string text) {
  for (;;) {
    std::u32string fixed = fix_encoding_once(text);
    if (fixed == text) return fixed;
    text = std::move(fixed);
  }
}

std::u32string fix_c1_controls(std::u32string text) {
  for (char32_t& c : text) {
    if (is_c1_control(c)) c = decode_windows_1252(static_cast<uint8_t>(c));
  }
  return text;
}

}  // namespace zoetrope::text
