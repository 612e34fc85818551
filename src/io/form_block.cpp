#include "io/form_block.h"

#include <sys/mman.h>

#include <new>

namespace zoetrope::io {
namespace {

class AnonymousBlock final : public FormBlock {
 public:
  explicit AnonymousBlock(size_t bytes) : bytes_(bytes) {
    if (bytes_ == 0) return;
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<std::byte*>(mapped);
  }
  AnonymousBlock(const AnonymousBlock&) = delete;
  AnonymousBlock& operator=(const AnonymousBlock&) = delete;
  ~AnonymousBlock() override {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  std::byte* data() const override { return data_; }

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace

std::unique_ptr<FormBlock> FormBlock::anonymous(size_t bytes) { return std::make_unique<AnonymousBlock>(bytes); }

}  // namespace zoetrope::io
