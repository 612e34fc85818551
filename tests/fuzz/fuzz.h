// Readers under random input. A target is one reader and a way to change its inputs that keeps them readable: behind a
// wrong length or checksum nothing would be tried. The same targets run in two programs: under libFuzzer, which looks
// for inputs that reach new code (`./run fuzz`), and in a test that reads the kept inputs and a fixed number of changes
// of them (replay.cpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace zoetrope::fuzz {

// Where changes take their choices and their bytes from.
class Dice {
 public:
  // Changes a few bytes, length included, by its own means.
  using ByteChange = void (*)(std::string& bytes, std::mt19937_64& random);
  Dice(uint64_t seed, ByteChange change) : random_(seed), change_(change) {}

  size_t below(size_t count) { return count == 0 ? 0 : random_() % count; }
  bool one_in(size_t count) { return below(count) == 0; }
  template <typename T>
  const T& pick(const std::vector<T>& choices) {
    return choices[below(choices.size())];
  }
  std::string changed(std::string bytes) {
    change_(bytes, random_);
    return bytes;
  }

 private:
  std::mt19937_64 random_;
  ByteChange change_;
};

struct Target {
  // Reads the input as the product does. Throws Error where it refuses it; every other exception is a defect.
  void (*read)(const std::string& bytes);
  // Another input, whose outermost form is right.
  std::string (*change)(const std::string& bytes, Dice& dice);
  // What an Error says that refused the input for its outermost form.
  std::vector<std::string_view> header_errors;
};
extern const Target kTarget;  // every X_fuzz.cpp defines its own

// False where the input was refused for its outermost form.
bool reads_past_header(const std::string& bytes);

// A folder of this process, gone when it ends; files in it.
std::filesystem::path folder();
std::filesystem::path write(const std::string& name, std::string_view bytes);

// Looks at every byte, so that a sanitizer does.
void touch(const void* data, size_t bytes);

}  // namespace zoetrope::fuzz
