// A target as libFuzzer calls it. Says at the end how many inputs got past the header.
#include <cstdio>
#include <cstring>

#include "fuzz.h"

extern "C" {
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed);
}

namespace {

struct Count {
  size_t inputs = 0, past_header = 0;
  ~Count() {
    if (inputs == 0) return;
    std::fprintf(stderr, "past the header: %zu of %zu inputs, %.1f %%\n", past_header, inputs,
                 100.0 * static_cast<double>(past_header) / static_cast<double>(inputs));
  }
};

void change_bytes(std::string& bytes, std::mt19937_64&) {
  constexpr size_t kRoom = 64;
  const size_t size = bytes.size();
  bytes.resize(size + kRoom);
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size()));
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Count count;
  ++count.inputs;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  if (zoetrope::fuzz::reads_past_header(bytes)) ++count.past_header;
  return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  zoetrope::fuzz::Dice dice(seed, change_bytes);
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const std::string changed = zoetrope::fuzz::kTarget.change(bytes, dice);
  if (changed.size() > most) return size;
  std::memcpy(data, changed.data(), changed.size());
  return changed.size();
}
