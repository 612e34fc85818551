// Memory for all packed weights of a model, in one piece.
#pragma once

#include <cstddef>
#include <memory>

namespace zoetrope::io {

class WeightBuffer {
 public:
  virtual ~WeightBuffer() = default;
  virtual std::byte* data() const = 0;
  virtual void require_unchanged() const {}  // Error if it is a file that has been written to

  // Zeroed memory, in huge pages where the system has them. Two threads clear 2.8 GB of huge pages in 0.5 to 0.7 s
  // (1.6 s the first time); small pages take 1.4 to 2.1 s, or 1.1 to 1.2 s when they are populated in pieces before
  // their use (MADV_POPULATE_WRITE). There is one page fault instead of 512, and a load takes a third less CPU time. In
  // a virtual machine whose host returns memory slowly, huge pages were slower: loads of 2.2, 3.8 and 7.4 s instead of
  // 1.7 s.
  static std::unique_ptr<WeightBuffer> anonymous(size_t bytes);
  // Addresses for more memory than the machine may have, of which only a part is used at a time.
  static std::unique_ptr<WeightBuffer> reserved(size_t bytes);
};

}  // namespace zoetrope::io
