// Memory for all derived forms of a model, in one piece.
#pragma once

#include <cstddef>
#include <memory>

namespace zoetrope::io {

class FormBlock {
 public:
  virtual ~FormBlock() = default;
  virtual std::byte* data() const = 0;
  virtual void require_unchanged() const {}  // Error where it is a file that somebody has written to

  // Fresh memory. In one mapping, because then nearly all of it is huge pages: the system clears them three times as
  // fast as small ones, which is a third of the time of loading, and matrices are read with few TLB misses.
  static std::unique_ptr<FormBlock> anonymous(size_t bytes);
};

}  // namespace zoetrope::io
