// The parts of the extension module zoetrope._core, and what they share. Values that are keys of the program arrive as
// text, in the spelling of docs/configuration.md, so that names, ranges and sentences stay those of its descriptions.
#pragma once

// First: it brings Python.h, which defines macros of system headers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>
#include <utility>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/options.h"

namespace zoetrope::python {

namespace nb = nanobind;

// Keys with their values, in the order in which they were given.
using Keys = std::vector<std::pair<std::string, std::string>>;

// Sets `keys` of the set; `origin` says where they were given, in errors.
void set_keys(OptionSet& set, const Keys& keys, const char* origin);

// ---- arrays of Python as views, and tensors as arrays of Python (arrays.cpp) ----------------------------------------

// Any object with __dlpack__ or a buffer. Throws TypeError, naming `name`, for other objects and for devices but CPUs.
nb::ndarray<nb::ro> read_array(const char* name, const nb::object& object);
// Likewise, and for an array that cannot be written.
nb::ndarray<> write_array(const char* name, const nb::object& object);

enum class Bits : uint8_t {
  kByDType,      // what the array says
  kAreBFloat16,  // the array's 16-bit integers are bf16 values, which NumPy has no type for
};
// The array's memory in place, with its strides. Throws TypeError for a dtype that no tensor has, ValueError for more
// axes than a tensor has. A read-only array's memory must not be written.
TensorView view_of(const char* name, const nb::ndarray<nb::ro>& array, Bits bits = Bits::kByDType);
TensorView view_of(const char* name, const nb::ndarray<>& array, Bits bits = Bits::kByDType);

// A NumPy array that owns the tensor's memory. F32.
nb::object numpy_array(Tensor tensor);
// A NumPy array of values, of this shape.
nb::object numpy_array(std::vector<float> values, const std::vector<size_t>& shape);

// ---- the functions and classes of the module ------------------------------------------------------------------------

void bind_attention(nb::module_& module);
void bind_pipeline(nb::module_& module);
void bind_plan(nb::module_& module);

}  // namespace zoetrope::python
