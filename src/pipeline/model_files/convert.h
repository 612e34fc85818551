// The weights of one component in another number format, container or naming: reads what generate reads, and writes
// files that it reads again.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"

namespace zoetrope::pipeline {

enum class NameLayout : uint8_t {
  kKept,       // as the input names its tensors
  kDiffusers,  // the hub's folders
  kOriginal,   // the original code of Wan, which ComfyUI's files share
};

struct ConvertOptions {
  std::string in;      // a component's folder, or a file
  std::string out;     // a file, by its ending, or a folder
  std::string format;  // a word of io::number_formats()
  NameLayout layout = NameLayout::kKept;
  std::string model;  // whose component a file is, where its shapes are of no known model
  bool tensors = true;
  std::optional<int64_t> threads;
};

OptionSet describe_options(ConvertOptions& options);

struct ConvertedTensor {
  std::string name;      // in the output
  std::string from, to;  // "BF16", "Q8_0", "F8_E4M3 with a scale"
  double relative_l2 = 0;
  double largest_error = 0;
};

struct ConvertReport {
  std::vector<ConvertedTensor> tensors;  // in the order of the model
  int64_t changed_format = 0;            // tensors that are stored in the wanted format
  uint64_t bytes_before = 0, bytes = 0;  // of tensor data
  double relative_l2 = 0;                // of all values together
  std::vector<std::string> notes;        // sentences: what was left out
};

struct ConvertCallbacks {
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of the output
  std::function<bool()> cancelled;
};

// Quantised are matrices of the blocks whose rows are whole units of the format, but those kept in float32; all other
// tensors keep their type, or become float32 where it cannot be kept. A plain format (f32, f16, bf16) is for all
// tensors but, again, those kept in float32. Tensor by tensor, in pieces; the file appears when it is whole. Throws
// Error where the input is damaged or no component, a format cannot be written or not in this container, a value is too
// large for it, or the disk has too little space.
ConvertReport convert(const ConvertOptions& options, const ConvertCallbacks& callbacks = {});

}  // namespace zoetrope::pipeline
