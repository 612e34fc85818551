// replay CORPUS COUNT: reads every file of the folder CORPUS, then COUNT inputs that are changed from them, the same
// ones in every run. What a sanitizer or an exception other than Error finds ends the program, and the input is in
// the folder that it leaves behind. Fails where fewer than half of the changed inputs get past the header: then the
// changes are not what they should be.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>

#include "fuzz.h"

namespace {

namespace fs = std::filesystem;
using zoetrope::fuzz::Dice;

void change_bytes(std::string& bytes, std::mt19937_64& random) {
  constexpr size_t kMostEdits = 3, kMostInserted = 16;
  const auto below = [&](size_t count) { return count == 0 ? 0 : random() % count; };
  const auto byte = [&] { return static_cast<char>(random()); };
  for (size_t edits = 1 + below(kMostEdits); edits > 0; --edits) {
    const size_t at = below(bytes.size() + 1), count = below(std::min(kMostInserted, bytes.size() - at) + 1);
    switch (below(6)) {
      case 0:
        bytes.insert(at, 1 + below(kMostInserted), byte());
        break;
      case 1:
        bytes.erase(at, count);
        break;
      case 2:
        bytes.insert(at, bytes.substr(below(bytes.size() + 1), kMostInserted));
        break;
      case 3:
        for (size_t i = 0; i < count; ++i) bytes[at + i] = i % 2 == 0 ? '\0' : '\xFF';
        break;
      case 4:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      default:
        for (size_t i = 0; i < count; ++i) bytes[at + i] = byte();
    }
  }
}

int replay(const fs::path& corpus, size_t count) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(corpus)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> inputs;
  for (const fs::path& file : files) {
    std::ifstream stream(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    std::printf("%s\n", file.filename().c_str());  // known before it can end the program
    std::fflush(stdout);
    zoetrope::fuzz::reads_past_header(inputs.back());
  }
  if (inputs.empty()) {
    std::printf("%s: holds no inputs\n", corpus.c_str());
    return 1;
  }
  size_t past_header = 0;
  for (size_t seed = 0; seed < count; ++seed) {
    Dice dice(seed, change_bytes);
    std::string input = inputs[seed % inputs.size()];
    for (size_t changes = 1 + dice.below(4); changes > 0; --changes)
      input = zoetrope::fuzz::kTarget.change(input, dice);
    if (zoetrope::fuzz::reads_past_header(input)) ++past_header;
  }
  std::printf("%zu kept inputs; past the header: %zu of %zu changed ones\n", inputs.size(), past_header, count);
  return 2 * past_header >= count ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "replay CORPUS COUNT\n");
    return 2;
  }
  return replay(argv[1], std::strtoul(argv[2], nullptr, 10));
}
