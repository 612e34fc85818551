// A weight cache whose file was changed, as a load finds it. Checksums are set again after most changes, so that what
// they guard is reached.
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "fuzz.h"
#include "io/weights/checksum.h"
#include "io/weights/weight_cache.h"

namespace zoetrope::fuzz {
namespace {

namespace fs = std::filesystem;
using io::WeightCache;

// The file's layout: weight_cache.cpp.
constexpr size_t kPage = 4096, kWord = sizeof(uint64_t), kHeaderFields = 6;

const WeightCache::Contents& contents() {
  static const WeightCache::Contents made{"a model", {{11, 0, 100}, {22, 128, 64}, {33, 192, 200}}, 448};
  return made;
}

// The one file that these contents are looked for in, and its bytes as they are right.
struct Right {
  fs::path file;
  std::string bytes;
};
const Right& right() {
  static const Right made = [] {
    static const std::vector<std::byte> forms(contents().bytes, std::byte{7});
    WeightCache cache(folder() / "cache", "fuzz");
    std::vector<const std::byte*> places;
    for (const WeightCache::Entry& entry : contents().entries) places.push_back(forms.data() + entry.offset);
    cache.write(contents(), places);
    cache.finish();
    const fs::path file = fs::directory_iterator(folder() / "cache")->path();
    std::ifstream stream(file, std::ios::binary);
    return Right{file, {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()}};
  }();
  return made;
}

void read(const std::string& bytes) {
  write("cache/" + right().file.filename().string(), bytes);
  WeightCache cache(folder() / "cache", "fuzz", WeightCache::Access::kRead);
  const std::unique_ptr<WeightCache::Kept> kept = cache.open(contents());
  const std::vector<std::string> notes = cache.take_notes();
  if (!kept) {
    ZT_CHECK(notes.size() == 1);
    fail("{}", notes.front());
  }
  ZT_CHECK(notes.empty());
  for (size_t i = 0; i < contents().entries.size(); ++i) {
    if (kept->verify(i)) touch(kept->data() + contents().entries[i].offset, contents().entries[i].bytes);
  }
  kept->require_unchanged();
}

uint64_t sum_of(const std::string& bytes, size_t begin, size_t count) {
  return io::checksum(reinterpret_cast<const std::byte*>(bytes.data()) + begin, count);
}

void set_word(std::string& bytes, size_t at, uint64_t value) { std::memcpy(bytes.data() + at, &value, kWord); }

std::string change(const std::string& bytes, Dice& dice) {
  std::string changed = bytes;
  if (changed.size() < kPage) changed.resize(kPage);
  const size_t forms = contents().entries.size(), table = (forms + 1) * kWord;
  switch (dice.below(6)) {
    case 0:  // a field of the header
      set_word(changed, kWord * (1 + dice.below(kHeaderFields - 1)),
               dice.pick<uint64_t>({0, 1, kPage, changed.size(), changed.size() + 1, contents().bytes,
                                    uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - kPage}));
      break;
    case 1: {  // any bytes of the header
      const std::string header = dice.changed(changed.substr(0, kHeaderFields * kWord));
      changed.replace(0, std::min(header.size(), kHeaderFields * kWord), header.substr(0, kHeaderFields * kWord));
      break;
    }
    case 2:  // the forms
      changed = changed.substr(0, kPage) + dice.changed(changed.substr(kPage));
      break;
    case 3:  // the length, and what the header says of it
      changed.resize(kPage + dice.below(2 * contents().bytes));
      if (dice.one_in(2)) set_word(changed, 5 * kWord, changed.size());
      break;
    case 4:  // the table, and its own checksum
      if (changed.size() < kPage + table) break;
      set_word(changed, changed.size() - table + dice.below(forms) * kWord, dice.below(UINT64_MAX));
      set_word(changed, changed.size() - kWord, sum_of(changed, changed.size() - table, forms * kWord));
      break;
    default:  // the header as it is right
      changed.replace(0, kPage, right().bytes, 0, kPage);
  }
  if (!dice.one_in(16)) set_word(changed, kHeaderFields * kWord, sum_of(changed, 0, kHeaderFields * kWord));
  return changed;
}

}  // namespace

const Target kTarget{read, change, {"is not a weight cache of this version", "is cut off"}};

}  // namespace zoetrope::fuzz
