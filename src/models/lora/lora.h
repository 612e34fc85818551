// A LoRA file as changes of the tensors in a table: keys matched, ranks and shapes compared with the model's, values
// checked. The changes are added where weights are read (io/weights/merged_source.h); nothing here touches the model's
// values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/weights/merged_source.h"
#include "io/weights/tensor_table.h"

namespace zoetrope::lora {

struct Lora {
  std::filesystem::path file;
  std::filesystem::path config_file;  // PEFT's, beside it, if it was read
  double strength = 1;
  int64_t tensors = 0;                       // that it changes
  int64_t least_rank = 0, largest_rank = 0;  // 0: no low-rank product
  int64_t scratch_elements = 0;              // see io::merge_scratch_elements: the most of any of its changes
  std::vector<std::string> warnings;         // sentences: keys that are left out, by name
  io::WeightDeltas deltas;                   // of strength 0: none
};

// Reads and checks the file, or the one in a folder as diffusers or PEFT saves it: every value that is used is checked
// once. `strength` multiplies every change. Throws Error where no key names a tensor of `tensors` (a LoRA of another
// model), where a part is missing or does not fit in shape or rank, and where a value or a factor (strength times alpha
// / rank) is not finite in float32.
Lora open_lora(const std::filesystem::path& file, double strength, const io::TensorTable& tensors);

// Appends a LoRA's changes.
void append(io::WeightDeltas& to, const io::WeightDeltas& more);

}  // namespace zoetrope::lora
