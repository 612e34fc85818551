// The file or folder that a conversion writes: which tensors come in which order, and what else is in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pipeline/model_files/convert.h"
#include "pipeline/model_files/convert_plan.h"
#include "pipeline/model_files/known_models.h"

namespace zoetrope::pipeline {

class ConvertOutput {
 public:
  ConvertOutput(const ConvertOutput&) = delete;
  ConvertOutput& operator=(const ConvertOutput&) = delete;
  virtual ~ConvertOutput() = default;
  // In the order in which write() expects them: codes, and behind them the scales and the text of the layer.
  const std::vector<PlannedTensor>& tensors() const { return tensors_; }
  uint64_t bytes() const { return bytes_; }  // of all tensors
  virtual void write(const void* data, size_t bytes) = 0;
  virtual void commit() = 0;  // under the final name; everything must have been written

 protected:
  explicit ConvertOutput(std::vector<PlannedTensor> tensors) : tensors_(std::move(tensors)) {}
  std::vector<PlannedTensor> tensors_;
  uint64_t bytes_ = 0;
};

// Throws Error where it cannot be written, or the disk has too little space.
std::unique_ptr<ConvertOutput> open_convert_output(const ConvertOptions& options, const ConvertPlan& plan,
                                                   const ComponentAlone& in);

}  // namespace zoetrope::pipeline
