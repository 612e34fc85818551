#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "python/bindings/bindings.h"

namespace zoetrope::python {
namespace {

std::string type_name(const nb::object& object) {
  return nb::cast<std::string>(nb::str(object.type().attr("__name__")));
}

[[noreturn]] void type_error(const std::string& sentence) { throw nb::type_error(sentence.c_str()); }

template <typename Array>
Array import_array(const char* name, const nb::object& object, const char* otherwise) {
  Array array;
  if (!nb::try_cast(object, array, false)) {
    type_error(fmt::format("{} is of type {}, {}", name, type_name(object), otherwise));
  }
  if (array.device_type() != nb::device::cpu::value) {
    type_error(fmt::format("{} is on a device of DLPack's type {}, but attention is computed on CPUs; move it there",
                           name, array.device_type()));
  }
  return array;
}

DType dtype_of(const char* name, nb::dlpack::dtype dtype, Bits bits) {
  using Code = nb::dlpack::dtype_code;
  struct Known {
    Code code;
    int size;
    DType dtype;
  };
  static constexpr Known kKnown[] = {{Code::Float, 32, DType::kF32}, {Code::Bfloat, 16, DType::kBF16},
                                     {Code::Float, 16, DType::kF16}, {Code::Float, 64, DType::kF64},
                                     {Code::Int, 64, DType::kI64},   {Code::Int, 32, DType::kI32},
                                     {Code::UInt, 8, DType::kU8},    {Code::Bool, 8, DType::kBool}};
  if (bits == Bits::kAreBFloat16 && dtype == nb::dtype<uint16_t>()) return DType::kBF16;
  for (const Known& known : kKnown)
    if (dtype.lanes == 1 && dtype.code == static_cast<uint8_t>(known.code) && dtype.bits == known.size)
      return known.dtype;
  type_error(fmt::format("{} has a dtype of DLPack's code {} with {} bits, which no tensor has", name,
                         static_cast<int>(dtype.code), static_cast<int>(dtype.bits)));
}

template <typename Array>
TensorView view_of_any(const char* name, const Array& array, Bits bits) {
  if (array.ndim() > static_cast<size_t>(Shape::kMaxRank))
    fail("{} has {} axes; at most {} can be used", name, array.ndim(), Shape::kMaxRank);
  Shape shape, strides;
  for (size_t axis = 0; axis < array.ndim(); ++axis) {
    shape.append(static_cast<int64_t>(array.shape(axis)));
    strides.append(array.stride(axis));
  }
  char* const first = static_cast<char*>(array.data_handle()) + array.byte_offset();
  return TensorView(first, dtype_of(name, array.dtype(), bits), shape, strides);
}

template <typename Owner>
nb::object owned_array(float* data, const std::vector<size_t>& shape, std::unique_ptr<Owner> owner) {
  nb::capsule capsule(owner.get(), [](void* pointer) noexcept { delete static_cast<Owner*>(pointer); });
  owner.release();
  return nb::cast(nb::ndarray<nb::numpy, float>(data, shape.size(), shape.data(), capsule));
}

}  // namespace

void set_keys(OptionSet& set, const Keys& keys, const char* origin) {
  // What a recipe sets, the others change: the names of a call have no order.
  for (const bool recipe : {true, false})
    for (const auto& [key, value] : keys)
      if ((key == "recipe") == recipe) set.set(key, value, origin);
}

nb::ndarray<nb::ro> read_array(const char* name, const nb::object& object) {
  return import_array<nb::ndarray<nb::ro>>(
      name, object, "which gives no array; a NumPy array, a PyTorch tensor or any object with __dlpack__ does");
}

nb::ndarray<> write_array(const char* name, const nb::object& object) {
  return import_array<nb::ndarray<>>(name, object, "which gives no array that can be written");
}

TensorView view_of(const char* name, const nb::ndarray<nb::ro>& array, Bits bits) {
  return view_of_any(name, array, bits);
}

TensorView view_of(const char* name, const nb::ndarray<>& array, Bits bits) { return view_of_any(name, array, bits); }

nb::object numpy_array(Tensor tensor) {
  auto owner = std::make_unique<Tensor>(std::move(tensor));
  std::vector<size_t> shape;
  for (int axis = 0; axis < owner->shape().rank(); ++axis) shape.push_back(static_cast<size_t>(owner->extent(axis)));
  float* const data = owner->data<float>();
  return owned_array(data, shape, std::move(owner));
}

nb::object numpy_array(std::vector<float> values, const std::vector<size_t>& shape) {
  auto owner = std::make_unique<std::vector<float>>(std::move(values));
  float* const data = owner->data();
  return owned_array(data, shape, std::move(owner));
}

}  // namespace zoetrope::python
