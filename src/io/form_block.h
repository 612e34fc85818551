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

  // Fresh memory, of huge pages where the system has them. Two threads clear 2.8 GB of those in 0.5 to 0.7 s (1.6 the
  // first time), where small pages take 1.4 to 2.1 s, or 1.1 to 1.2 asked for in pieces ahead of their use
  // (MADV_POPULATE_WRITE): a fault where there were 512, and a load takes a third less processor time. In another
  // virtual machine, whose host gives back slowly what it has taken, they were the slower ones: loads of 2.2, 3.8
  // and 7.4 s instead of 1.7.
  static std::unique_ptr<FormBlock> anonymous(size_t bytes);
};

}  // namespace zoetrope::io
