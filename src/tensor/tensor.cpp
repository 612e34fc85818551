#include "zoetrope/tensor.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace zoetrope {

size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kU8:
    case DType::kBool:
    case DType::kI8:
      return 1;
  }
  ZT_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "F64";
    case DType::kI64:
      return "I64";
    case DType::kF32:
      return "F32";
    case DType::kI32:
      return "I32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kU8:
      return "U8";
    case DType::kI8:
      return "I8";
    case DType::kBool:
      return "BOOL";
  }
  ZT_CHECK(false, "dtype {}", static_cast<int>(dtype));
}

Shape::Shape(std::initializer_list<int64_t> extents) {
  for (const int64_t extent : extents) append(extent);
}

int64_t Shape::size() const {
  int64_t size = 1;
  for (int axis = 0; axis < rank_; ++axis) size *= (*this)[axis];
  return size;
}

void Shape::append(int64_t extent) {
  ZT_CHECK(rank_ < kMaxRank);
  extents_[static_cast<size_t>(rank_++)] = extent;
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int axis = 0; axis < rank_; ++axis) text += fmt::format("{}{}", axis == 0 ? "" : ", ", (*this)[axis]);
  return text + "]";
}

bool Shape::operator==(const Shape& other) const {
  if (rank_ != other.rank_) return false;
  for (int axis = 0; axis < rank_; ++axis) {
    if ((*this)[axis] != other[axis]) return false;
  }
  return true;
}

namespace {

Shape row_major_strides(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= shape[axis];
  }
  return strides;
}

}  // namespace

TensorView::TensorView(void* data, DType dtype, const Shape& shape)
    : data_(data), shape_(shape), strides_(row_major_strides(shape)), dtype_(dtype) {}

TensorView::TensorView(void* data, DType dtype, const Shape& shape, const Shape& strides)
    : data_(data), shape_(shape), strides_(strides), dtype_(dtype) {
  ZT_CHECK(shape.rank() == strides.rank());
}

bool TensorView::contiguous() const {
  int64_t expected = 1;
  for (int axis = rank() - 1; axis >= 0; --axis) {
    if (extent(axis) != 1 && stride(axis) != expected) return false;
    expected *= extent(axis);
  }
  return true;
}

TensorView TensorView::slice(int axis, int64_t begin, int64_t end) const {
  ZT_CHECK(axis >= 0 && axis < rank() && 0 <= begin && begin <= end && end <= extent(axis),
           "slice [{}, {}) of axis {} of {}", begin, end, axis, shape_.to_string());
  TensorView view = *this;
  view.shape_[axis] = end - begin;
  if (data_ != nullptr) {
    view.data_ = static_cast<std::byte*>(data_) + begin * stride(axis) * static_cast<int64_t>(dtype_size(dtype_));
  }
  return view;
}

TensorView TensorView::select(int axis, int64_t index) const {
  const TensorView one = slice(axis, index, index + 1);
  Shape shape, strides;
  for (int i = 0; i < rank(); ++i) {
    if (i == axis) continue;
    shape.append(extent(i));
    strides.append(stride(i));
  }
  return {one.data_, dtype_, shape, strides};
}

TensorView TensorView::permute(std::initializer_list<int> axes) const {
  ZT_CHECK(static_cast<int>(axes.size()) == rank());
  Shape shape, strides;
  for (const int axis : axes) {
    shape.append(extent(axis));
    strides.append(stride(axis));
  }
  return {data_, dtype_, shape, strides};
}

TensorView TensorView::reshape(const Shape& shape) const {
  ZT_CHECK(contiguous() && shape.size() == size(), "{} as {}", shape_.to_string(), shape.to_string());
  return {data_, dtype_, shape};
}

TensorView TensorView::split_axis(int axis, int64_t outer, int64_t inner) const {
  ZT_CHECK(axis >= 0 && axis < rank() && outer * inner == extent(axis));
  Shape shape, strides;
  for (int i = 0; i < rank(); ++i) {
    if (i == axis) {
      shape.append(outer);
      strides.append(inner * stride(i));
      shape.append(inner);
    } else {
      shape.append(extent(i));
    }
    strides.append(stride(i));
  }
  return {data_, dtype_, shape, strides};
}

namespace {

constexpr size_t kLine = 64, kPage = 4096, kLargePage = size_t{2} << 20;

// In the cache line before a tensor's memory.
struct Origin {
  void* base;
  size_t mapped;  // bytes from `base`; 0: from malloc
};
Origin& origin_of(void* memory) { return *reinterpret_cast<Origin*>(static_cast<char*>(memory) - kLine); }

void* remember(char* memory, const Origin& origin) {
  origin_of(memory) = origin;
  return memory;
}

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void* allocate_small(size_t bytes) {
  void* base = nullptr;
  if (::posix_memalign(&base, kLine, kLine + rounded(bytes + 1, kLine)) != 0) return nullptr;
  return remember(static_cast<char*>(base) + kLine, {base, 0});
}

// A mapping of its own, so that freeing returns it to the system: after the first large block, malloc uses heaps of its
// threads, which keep freed memory (loading a model of 0.6 GB left 0.4 GB behind). On huge pages where the system has
// them: rows of heads are kilobytes apart, and with 4 KiB pages each needs a TLB entry (in a virtual machine attention
// over 16 000 keys gains 2 to 4 points).
void* allocate_large(size_t bytes) {
  const size_t size = rounded(bytes, kPage), reserved = kPage + kLargePage + size;
  if (reserved < bytes) return nullptr;
  void* mapped = ::mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  char* const begin = static_cast<char*>(mapped);
  char* const memory =
      begin + (rounded(reinterpret_cast<uintptr_t>(begin) + kPage, kLargePage) - reinterpret_cast<uintptr_t>(begin));
  char* const base = memory - kPage;  // whose last line is the origin
  if (base > begin) ::munmap(begin, static_cast<size_t>(base - begin));
  char* const end = memory + size;
  if (begin + reserved > end) ::munmap(end, static_cast<size_t>(begin + reserved - end));
  ::madvise(memory, size, MADV_HUGEPAGE);  // a hint: without large pages nothing changes
  return remember(memory, {base, kPage + size});
}

// The address sanitizer guards the ends of what malloc gives.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMapsLarge = false;
#else
constexpr bool kMapsLarge = true;
#endif

void* allocate(size_t bytes) {
  return kMapsLarge && bytes >= kLargePage ? allocate_large(bytes) : allocate_small(bytes);
}

}  // namespace

Tensor Tensor::uninitialized(DType dtype, const Shape& shape) {
  Tensor tensor;
  const size_t bytes = static_cast<size_t>(shape.size()) * dtype_size(dtype);
  void* memory = allocate(bytes);
  if (memory == nullptr) fail("out of memory: {} bytes for a tensor of shape {}", bytes, shape.to_string());
  tensor.memory_.reset(memory);
  tensor.view_ = TensorView(memory, dtype, shape);
  return tensor;
}

Tensor::Tensor(DType dtype, const Shape& shape) : Tensor(uninitialized(dtype, shape)) {
  std::memset(view_.raw(), 0, view_.bytes());
}

void Tensor::Free::operator()(void* memory) const {
  const Origin origin = origin_of(memory);
  if (origin.mapped == 0) std::free(origin.base);
  else ::munmap(origin.base, origin.mapped);
}

}  // namespace zoetrope
