// What a conversion writes: for each tensor its name, type and shape in the output, decided before anything is read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/weights/tensor_encoder.h"
#include "pipeline/model_files/convert.h"
#include "pipeline/model_files/known_models.h"

namespace zoetrope::pipeline {

enum class Container : uint8_t { kSafetensors, kGguf, kFolder };

struct PlannedTensor {
  std::string from, to;                          // names in the input and in the output
  std::string stored;                            // its type in the input
  Shape shape;                                   // in the output
  const io::NumberFormatInfo* format = nullptr;  // null: the bytes as they are stored, of the type `stored`
  bool numbers = true;                           // false: bytes that are no weights

  // What the output's table says of it.
  std::string type_text() const;
  // Scales and a configuration are in tensors of their own, named after the layer.
  bool has_scales() const { return format != nullptr && format->layer != nullptr; }
  std::string layer() const;
  std::string layer_text(const io::TensorEncoder& encoder) const;  // {"format": …}, as ComfyUI reads it
  // Shape of the tensor of codes.
  Shape shape_of_codes() const;
};

struct ConvertPlan {
  Container container;
  const io::NumberFormatInfo* format = nullptr;
  std::vector<PlannedTensor> tensors;  // in the order of the model
  int64_t in_format = 0;               // tensors that get the wanted format
  std::vector<std::string> notes;
};

// By the ending of the output, which must have the format.
Container wanted_container(const ConvertOptions& options);

// Of the tensors of a transformer's file; those that are not quantised stay as stored, as far as the format has that.
int64_t converted_bytes(const io::TensorTable& tensors, const io::NumberFormatInfo& format, DType stored);

ConvertPlan plan_conversion(const ConvertOptions& options, const ComponentAlone& in, const io::WeightSource& source);

}  // namespace zoetrope::pipeline
