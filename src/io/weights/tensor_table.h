// The tensors of one component of a model: what a checkpoint must hold, what each tensor is for, and its names in
// other files. One function per component makes the table from the config (tensor_tables.h of models/wan and
// models/encoders). Checks,
// loading, byte counts, random weights, LoRA files and `inspect` read it. Holds no values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

enum class TensorRole : uint8_t {
  kMatrix,       // [out, in] of a linear layer
  kConvolution,  // [out, in, kernel…]
  kNorm,         // factors of a normalisation
  kBias,
  kTable,       // rows that are looked up or added: embeddings, positions
  kModulation,  // a block's part of the modulation by the timestep: scale_shift_table
};

// Names of tensors in files that do not use those of the hub's folders. A new scheme is an entry here and a column in
// the functions that make the tables.
enum class NamingScheme : uint8_t {
  kTied,      // the other name of a tensor that files of the hub may hold under two
  kOriginal,  // the original code of Wan, most single files and LoRA files
  kOther,     // llama.cpp's of the text encoder, OpenCLIP's of the image encoder
};
inline constexpr size_t kNamingSchemes = 3;

// A tensor elsewhere: there it may be one of several that are joined along axis 0, or transposed. Axes of extent 1 may
// differ.
struct TensorAlias {
  std::string name;  // empty: the same as in the hub's folders
  int part = 0;
  int parts = 1;
  bool transposed = false;
};

// How ranks that share a layer divide a tensor.
struct ShardAxis {
  int axis = 0;
  int64_t unit = 1;  // consecutive elements that stay together: those of a head
};

struct TensorSpec {
  std::string name;  // in the hub's folders (diffusers, transformers)
  Shape shape;
  TensorRole role = TensorRole::kMatrix;
  bool keep_float32 = false;                             // also in a model that computes in bf16
  bool int8 = false;                                     // multiplied in int8 in a model that computes in bf16
  std::optional<ShardAxis> shard_axis = {};              // nothing: every rank reads the whole tensor
  std::array<TensorAlias, kNamingSchemes> aliases = {};  // by NamingScheme
  double variance = 0;  // of random weights (io/weights/random_weights.h); 0: what suits the role

  // In a model that computes in `model`.
  DType dtype(DType model) const { return keep_float32 ? DType::kF32 : model; }
  // Of a matrix: what it is packed for.
  DType packed_dtype(DType model) const { return int8 && model == DType::kBF16 ? DType::kI8 : dtype(model); }
  TensorAlias& alias(NamingScheme scheme) { return aliases[static_cast<size_t>(scheme)]; }
  const TensorAlias& alias(NamingScheme scheme) const { return aliases[static_cast<size_t>(scheme)]; }
  const std::string& name_in(NamingScheme scheme) const {
    return alias(scheme).name.empty() ? name : alias(scheme).name;
  }
  // Part `part` of `parts` along the shard axis, which there must be.
  IndexRange shard(int parts, int part) const;
};

// In the order of the model, every name once.
using TensorTable = std::vector<TensorSpec>;

// That of part `part` of `parts`: what is divided has the shape of its part.
TensorTable part_of(const TensorTable& table, int parts, int part);

// By `name`; valid as long as the table stays where it is.
class TensorIndex {
 public:
  explicit TensorIndex(const TensorTable& table);
  const TensorSpec* find(std::string_view name) const;        // null where there is none
  const TensorSpec& operator[](std::string_view name) const;  // must be there

 private:
  std::unordered_map<std::string_view, const TensorSpec*> specs_;
};

struct TensorTotals {
  int64_t tensors = 0;
  int64_t parameters = 0;
  uint64_t bytes(DType dtype) const { return static_cast<uint64_t>(parameters) * dtype_size(dtype); }
};
TensorTotals totals(const TensorTable& table);
// Memory of the weights of a model that computes in `dtype`, as plain arrays.
int64_t resident_bytes(const TensorTable& table, DType dtype);

// The name under which `holder` (anything with contains(name)) has the tensor; its own if it has none of them.
template <typename Holder>
const std::string& stored_name(const Holder& holder, const TensorSpec& spec) {
  const std::string& tied = spec.name_in(NamingScheme::kTied);
  return !holder.contains(spec.name) && holder.contains(tied) ? tied : spec.name;
}

// Why files cannot be used: a tensor of the table is missing, has another shape, or is stored in a dtype that cannot be
// converted. Sentences for people: "'x' of F has shape [2], but the config … asks for [3]".
struct TensorDefects {
  std::vector<std::string> missing, misshapen, unreadable;
  bool none() const { return missing.empty() && misshapen.empty() && unreadable.empty(); }
};
// Further tensors are no defect.
TensorDefects tensor_defects(const WeightSource& source, const TensorTable& table);
// Throws Error with the first defect.
void require_tensors(const WeightSource& source, const TensorTable& table);

}  // namespace zoetrope::io
