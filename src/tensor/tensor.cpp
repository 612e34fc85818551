#include "zoetrope/tensor.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/index_range.h"

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

bool operator==(const Shape& a, const Shape& b) {
  if (a.rank_ != b.rank_) return false;
  for (int axis = 0; axis < a.rank_; ++axis) {
    if (a[axis] != b[axis]) return false;
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

TensorView::TensorView(void* data, DType dtype, const Shape& shape, Device device)
    : data_(data), shape_(shape), strides_(row_major_strides(shape)), dtype_(dtype), device_(device) {}

TensorView::TensorView(void* data, DType dtype, const Shape& shape, const Shape& strides, Device device)
    : data_(data), shape_(shape), strides_(strides), dtype_(dtype), device_(device) {
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
  return {one.data_, dtype_, shape, strides, device_};
}

TensorView TensorView::permute(std::initializer_list<int> axes) const {
  ZT_CHECK(static_cast<int>(axes.size()) == rank());
  Shape shape, strides;
  for (const int axis : axes) {
    shape.append(extent(axis));
    strides.append(stride(axis));
  }
  return {data_, dtype_, shape, strides, device_};
}

TensorView TensorView::reshape(const Shape& shape) const {
  ZT_CHECK(contiguous() && shape.size() == size(), "{} as {}", shape_.to_string(), shape.to_string());
  return {data_, dtype_, shape, device_};
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
  return {data_, dtype_, shape, strides, device_};
}

namespace {

// Large memory on large pages where the system has them: rows of heads lie kilobytes apart, and 4 KiB pages are looked
// up anew for each (nested in a virtual machine: attention over 16 000 keys gains 2 to 4 points).
void* allocate(size_t bytes) {
  constexpr size_t kLine = 64, kLargePage = size_t{2} << 20;
  const size_t alignment = bytes >= kLargePage ? kLargePage : kLine;
  const auto size = static_cast<size_t>(round_up(static_cast<int64_t>(bytes) + 1, kLine));
  void* memory = nullptr;
  if (::posix_memalign(&memory, alignment, size) != 0) return nullptr;
  if (bytes >= kLargePage) ::madvise(memory, bytes, MADV_HUGEPAGE);  // a hint: without large pages nothing changes
  return memory;
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

void Tensor::Free::operator()(void* memory) const { std::free(memory); }

}  // namespace zoetrope
