#include "io/weights/weight_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "base/index_range.h"

namespace zoetrope::io {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

class AnonymousBuffer final : public WeightBuffer {
 public:
  explicit AnonymousBuffer(size_t bytes, int more_flags = 0) : bytes_(bytes) {
    if (bytes_ == 0) return;
    if (bytes_ >= kHugePage) bytes_ += kHugePage;  // to begin at a huge page
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | more_flags, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    mapped_ = data_ = static_cast<std::byte*>(mapped);
    if (bytes < kHugePage) return;
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data_));
    data_ += round_up(address, int64_t{kHugePage}) - address;
    ::madvise(data_, bytes, MADV_HUGEPAGE);  // small pages where the system has no others
  }
  AnonymousBuffer(const AnonymousBuffer&) = delete;
  AnonymousBuffer& operator=(const AnonymousBuffer&) = delete;
  ~AnonymousBuffer() override {
    if (mapped_ != nullptr) ::munmap(mapped_, bytes_);
  }
  std::byte* data() const override { return data_; }

 private:
  size_t bytes_;
  std::byte *mapped_ = nullptr, *data_ = nullptr;
};

}  // namespace

std::unique_ptr<WeightBuffer> WeightBuffer::anonymous(size_t bytes) { return std::make_unique<AnonymousBuffer>(bytes); }
std::unique_ptr<WeightBuffer> WeightBuffer::reserved(size_t bytes) {
  return std::make_unique<AnonymousBuffer>(bytes, MAP_NORESERVE);
}

}  // namespace zoetrope::io
