// Quantised tensors of safetensors files: codes, and scales in tensors of their own. docs/spec/weights.md, sections 4.2
// to 4.7.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/index_range.h"
#include "io/weights/quantised_tensor.h"
#include "io/weights/tensor_file.h"

namespace zoetrope::io {

// The end of messages about other formats.
inline constexpr const char* kReadableFormats =
    "readable are fp8, int8_tensorwise (with or without ConvRot), mxfp8, nvfp4 and GGUF";

struct StoredPart {
  std::string name;
  const TensorInfo* info = nullptr;
  const std::byte* bytes = nullptr;
};

// What files say of a layer L besides its codes, L.weight.
struct ScaledLayer {
  std::string format;                     // of its configuration; empty where there is none
  std::optional<int64_t> rotation_group;  // ConvRot: inputs that are rotated together; empty: not rotated
  bool names_group = false;               // a ConvRot group without the word whether it is rotated
  std::optional<StoredPart> scale, second_scale;
  std::optional<StoredPart> input_scale;  // L.pre_quant_scale: of the layer's inputs, before the product
};

// Whether a tensor of this type needs a scale or holds codes; others are plain numbers.
bool holds_codes(const TensorInfo& info);

// `file` for errors. Throws Error where the parts do not fit each other or the format cannot be read.
std::shared_ptr<const QuantisedTensor> scaled_tensor(const std::string& file, const StoredPart& codes,
                                                     const ScaledLayer& layer);

// The order in which one-byte scales of runs of inputs are stored, that of NVIDIA's tensor cores: tiles of 128 rows by
// 4 runs. Those of rows and runs that fill up the last tiles belong to no weight.
class RunOrder {
 public:
  RunOrder(int64_t rows, int64_t runs)
      : extents_{ceil_div(rows, kTileRows) * kTileRows, ceil_div(runs, kTileRuns) * kTileRuns} {}
  const std::array<int64_t, 2>& extents() const { return extents_; }
  int64_t size() const { return extents_[0] * extents_[1]; }
  int64_t place(int64_t row, int64_t run) const {
    const int64_t tiles = extents_[1] / kTileRuns, tile = row / kTileRows * tiles + run / kTileRuns;
    const int64_t in_tile = row % kTileRows;
    return tile * kTileRows * kTileRuns + in_tile % 32 * 16 + in_tile / 32 * 4 + run % kTileRuns;
  }

 private:
  static constexpr int64_t kTileRows = 128, kTileRuns = 4;
  std::array<int64_t, 2> extents_;
};

// The values of codes, exact: e4m3fn without infinities, e5m2 as the upper byte of a float16.
void widen_e4m3(const std::byte* codes, int64_t count, float* out);
void widen_e5m2(const std::byte* codes, int64_t count, float* out);

// The values of the 16 codes of 4-bit floats, e2m1.
inline constexpr float kE2M1Values[] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                        -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

}  // namespace zoetrope::io
