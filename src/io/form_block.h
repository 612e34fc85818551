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

  // Fresh memory, of small pages. Huge ones are cleared three times as fast where there is memory behind them (16
  // against 5 GB/s with two threads); but in a virtual machine large free blocks are what the host has taken back, and
  // getting 2.8 GB of them again made a load take 2.2, 3.8 and 7.4 s instead of 1.7.
  static std::unique_ptr<FormBlock> anonymous(size_t bytes);
};

}  // namespace zoetrope::io
