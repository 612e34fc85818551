#include "device/arena.h"

#include <algorithm>

#include "base/error.h"
#include "base/index_range.h"

namespace zoetrope {

void* Arena::allocate(size_t bytes) {
  constexpr size_t kMinBlock = size_t{1} << 20;
  bytes = static_cast<size_t>(round_up(static_cast<int64_t>(std::max<size_t>(bytes, 1)), 64));
  const size_t first_unused = used_ == 0 ? block_ : block_ + 1;
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    while (blocks_.size() > first_unused) {
      reserved_ -= blocks_.back().bytes;
      blocks_.pop_back();
    }
    block_ = blocks_.size();
    const size_t size = std::max(kMinBlock, bytes);
    blocks_.push_back({Tensor::uninitialized(DType::kU8, {static_cast<int64_t>(size)}), size});
    reserved_ += size;
    used_ = 0;
  }
  void* memory = blocks_[block_].memory.data<std::byte>() + used_;
  used_ += bytes;
  return memory;
}

void Arena::release() {
  ZT_CHECK(block_ == 0 && used_ == 0, "an arena scope is still open");
  blocks_.clear();
  reserved_ = 0;
}

}  // namespace zoetrope
