// Views and owners of dense data: dtype, extents and strides. A view never owns; an owner never aliases. An axis, index
// or shape that does not fit is a defect of the calling program: it is reported, and the program aborts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "zoetrope/api.h"

namespace zoetrope {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI64, kI32, kU8, kBool, kI8 };

ZOETROPE_API size_t dtype_size(DType dtype);       // bytes per element
ZOETROPE_API const char* dtype_name(DType dtype);  // as safetensors spells it: "F32", "BF16", …, "U8", "BOOL"

// Up to five extents, outermost first.
class ZOETROPE_API Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);  // at most kMaxRank

  int rank() const { return rank_; }
  int64_t operator[](int axis) const { return extents_[static_cast<size_t>(axis)]; }
  int64_t& operator[](int axis) { return extents_[static_cast<size_t>(axis)]; }
  int64_t size() const;  // number of elements; 1 for rank 0
  void append(int64_t extent);
  std::string to_string() const;  // "[2, 3, 4]"
  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

// A trivially copyable view. Strides count elements and may be anything; code that needs a contiguous axis says so and
// refuses others. Every declaration of a view ends in its shape: `TensorView q; // [B, S, H, D]`.
class ZOETROPE_API TensorView {
 public:
  TensorView() = default;
  // Row-major contiguous.
  TensorView(void* data, DType dtype, const Shape& shape);
  TensorView(void* data, DType dtype, const Shape& shape, const Shape& strides);

  bool empty() const { return data_ == nullptr || size() == 0; }
  explicit operator bool() const { return data_ != nullptr; }
  void* raw() const { return data_; }
  template <typename T>
  T* data() const {
    return static_cast<T*>(data_);
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t extent(int axis) const { return shape_[axis < 0 ? axis + rank() : axis]; }
  int64_t stride(int axis) const { return strides_[axis < 0 ? axis + rank() : axis]; }  // elements
  int64_t size() const { return shape_.size(); }
  size_t bytes() const { return static_cast<size_t>(size()) * dtype_size(dtype_); }
  bool contiguous() const;  // row-major, no gaps; axes of extent 1 may have any stride

  TensorView slice(int axis, int64_t begin, int64_t end) const;  // same rank
  TensorView select(int axis, int64_t index) const;              // rank − 1
  TensorView permute(std::initializer_list<int> axes) const;
  TensorView reshape(const Shape& shape) const;                         // contiguous views only
  TensorView split_axis(int axis, int64_t outer, int64_t inner) const;  // extent = outer·inner; any strides

 private:
  void* data_ = nullptr;
  Shape shape_;
  Shape strides_;
  DType dtype_ = DType::kF32;
};

// Owns 64-byte aligned memory on the CPU, zero-initialised unless made by `uninitialized`. Throws Error where there is
// not enough.
class ZOETROPE_API Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, const Shape& shape);
  static Tensor uninitialized(DType dtype, const Shape& shape);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT: an owner is usable wherever a view is
  template <typename T>
  T* data() const {
    return view_.data<T>();
  }
  DType dtype() const { return view_.dtype(); }
  const Shape& shape() const { return view_.shape(); }
  int64_t extent(int axis) const { return view_.extent(axis); }
  int64_t size() const { return view_.size(); }
  explicit operator bool() const { return static_cast<bool>(view_); }

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<void, Free> memory_;
  TensorView view_;
};

}  // namespace zoetrope
