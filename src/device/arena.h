// Scratch memory that is used like a stack and kept, so that denoising steps after the first never call the allocator.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "zoetrope/tensor.h"

namespace zoetrope {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 64-byte aligned; valid until the enclosing Scope ends. Grows by whole blocks, which are kept for reuse; a larger
  // one replaces those that nothing uses.
  void* allocate(size_t bytes);
  TensorView tensor(DType dtype, const Shape& shape) {
    return {allocate(static_cast<size_t>(shape.size()) * dtype_size(dtype)), dtype, shape};
  }

  size_t reserved() const { return reserved_; }  // bytes taken from the system
  // Frees all memory; no Scope may be open.
  void release();

  // Everything allocated while a Scope exists is released when it ends. Scopes nest.
  class Scope {
   public:
    explicit Scope(Arena& arena) : arena_(arena), block_(arena.block_), used_(arena.used_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t block_;
    size_t used_;
  };

 private:
  struct Block {
    Tensor memory;
    size_t bytes = 0;
  };
  std::vector<Block> blocks_;
  size_t block_ = 0;  // index of the block in use
  size_t used_ = 0;   // bytes used in it
  size_t reserved_ = 0;
};

}  // namespace zoetrope
