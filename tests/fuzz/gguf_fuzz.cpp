// A GGUF file whose header was changed. Its numbers stand one after the other, so one is set to what matters for
// lengths, counts and offsets; or any bytes are changed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fuzz.h"
#include "io/weights/gguf.h"
#include "io/weights/tensor_file.h"

namespace zoetrope::fuzz {
namespace {

constexpr size_t kFirstCount = 8;  // behind magic and version

void read(const std::string& bytes) {
  const auto file = io::TensorFile::open(write("input.gguf", bytes));
  for (const auto& [name, info] : file->tensors()) {
    file->will_need(name);
    touch(file->bytes(name), info.bytes);
    file->release(name);
  }
  file->hash(io::TensorFile::Sample::kBlocks);
  file->require_unchanged();
}

template <typename T>
void set(std::string& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

std::string change(const std::string& bytes, Dice& dice) {
  std::string changed = bytes;
  if (changed.size() < kFirstCount + sizeof(uint64_t)) changed.resize(kFirstCount + sizeof(uint64_t));
  changed.replace(0, io::kGgufMagic.size(), io::kGgufMagic);
  set(changed, io::kGgufMagic.size(), uint32_t{3});
  const size_t places = changed.size() - kFirstCount - sizeof(uint64_t) + 1;
  const size_t at = kFirstCount + dice.below(std::min<size_t>(places, dice.one_in(4) ? places : 400));
  switch (dice.below(4)) {
    case 0:
      set(changed, at,
          dice.pick<uint64_t>({0, 1, 31, 32, changed.size(), uint64_t{1} << 40, UINT64_MAX, UINT64_MAX / 2 + 1}));
      break;
    case 1:
      set(changed, at, dice.pick<uint32_t>({0, 1, 2, 4, 5, 8, 9, 12, 13, 14, 30, 32, UINT32_MAX}));
      break;
    case 2:
      changed.resize(kFirstCount + dice.below(changed.size() - kFirstCount));
      break;
    default:
      changed = changed.substr(0, kFirstCount) + dice.changed(changed.substr(kFirstCount));
  }
  return changed;
}

}  // namespace

const Target kTarget{read, change, {"does not start with", "is empty", "of version", "big-endian"}};

}  // namespace zoetrope::fuzz
