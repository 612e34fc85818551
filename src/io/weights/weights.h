// A model's parameters in the dtype it computes with, shared by all ranks of the process: of large tensors the mapped
// file where it can be used in place, else one copy. Where the parameters come from is hidden by WeightSource.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "io/weights/checkpoint.h"
#include "io/weights/int8_codes.h"
#include "io/weights/weight_stream.h"

namespace zoetrope::io {

// Whether its values can be converted: F32, BF16, F16 or F64.
bool is_readable(const TensorInfo& info);

// Immutable; every function may be called from any thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool contains(const std::string& name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  virtual TensorInfo info(const std::string& name) const = 0;    // absent: Error
  virtual std::string where(const std::string& name) const = 0;  // the file, for errors; of an unknown name: the folder
  virtual TensorView mapped(const std::string& name) const = 0;  // usable in place as stored, else a null view
  virtual void read(const std::string& name,
                    const TensorView& out) const = 0;  // all values, in out's dtype; contiguous
  // Elements `range` of the tensor in row-major order, on the calling thread; contiguous. The default reads all.
  virtual void read_range(const std::string& name, IndexRange range, const TensorView& out) const;
  // Whether read_range() takes no longer than its share of read().
  virtual bool reads_parts(const std::string&) const { return false; }
  virtual void will_need(const std::string&) const {}
  // Nothing for a matrix that is stored otherwise, or changed since.
  virtual std::optional<Int8Codes> int8_codes(const std::string&) const { return {}; }
  // Releases the pages of a tensor that is not needed for a while. Views from mapped() stay valid.
  virtual void release(const std::string&) const {}
  virtual void require_unchanged() const {}  // Error if a file has changed since it was opened
  // Identifies these values, across runs; empty where that is not possible.
  virtual std::string identity() const { return {}; }
};

// Throws Error, with file, tensor and both shapes, where the tensor is missing or has another shape.
void require_shape(const WeightSource& source, const std::string& name, const Shape& expected);

// Reads quantised tensors too (quantised_tensor.h), as F32; their scales are not among the names. A large tensor is
// read and converted by `threads` threads, of which the caller is one; the values are the same.
std::shared_ptr<const WeightSource> checkpoint_source(Checkpoint checkpoint, int threads = 1);

// A weight as a kernel wants it, made of one or more stored tensors: converted, joined, packed for a matrix
// multiplication. Packed by a WeightLoader (weight_loader.h).
struct PackedWeight {
  std::vector<std::string> names;  // the stored tensors, in the order `pack` takes them
  std::vector<Shape> shapes;       // that they must have
  std::string layout;              // "bf16", "f32.columns64"; part of the cache's key
  size_t bytes = 0;                // of the result
  // Rows (along axis 0, of all tensors joined) that can be packed apart: any multiple of it; 0: all together.
  int64_t row_step = 0;
  // Fills the rows' part of `out` (64-byte aligned, the whole result) from rows of the tensors as stored, contiguous,
  // F32, BF16, F16 or F64, of which the first is `first_row`. Runs on several threads at the same time.
  std::function<void(std::span<const TensorView> stored, int64_t first_row, std::byte* out)> pack;
  // Rows from one multiple of it to another are bytes of their own of the result, from begin(first) to begin(second);
  // that of all rows is `bytes`. 0: rows do not lie side by side.
  int64_t part_rows = 0;
  std::function<size_t(int64_t row)> begin = {};
};

class HostSharing;
class WeightCache;
class WeightShards;

class Weights {
 public:
  explicit Weights(std::shared_ptr<const WeightSource> source);
  // For a WeightLoader. `cache`: packed weights on disk (weight_cache.h), or null. `progress` is called with bytes of
  // stored tensors, on the thread that loads. `memory`: bytes for packed weights; the rest is read from the cache while
  // it is used, or without one packed again; 0: all stay in memory. kFewestParts: as few as a stream needs.
  struct Loading {
    std::shared_ptr<WeightCache> cache;
    std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
    size_t memory = 0;
    // Other processes of the host, which load the same weights: packed ones that stay in memory exist once. Null: none.
    std::shared_ptr<HostSharing> sharing = {};
    // Ranks that keep parts of the packed weights for one another: the rest is gathered while it is used. Without a
    // cache, `memory` and `sharing`. Null: none.
    std::shared_ptr<WeightShards> shards = {};
  };
  static constexpr size_t kFewestParts = 1;
  Weights(std::shared_ptr<const WeightSource> source, Loading loading);
  Weights(Weights&&) noexcept;
  ~Weights();

  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;
  TensorInfo info(const std::string& name) const;
  std::optional<Int8Codes> int8_codes(const std::string& name) const;  // WeightSource::int8_codes()

  // Contiguous, aligned for its type and read-only; the same memory on every call with the same name and dtype, valid
  // as long as the Weights. `wanted` is F32 or BF16 (any stored float is converted by way of float32, rounded to
  // nearest even) or the stored dtype. A missing tensor or another shape is an Error that names file, tensor and both
  // shapes.
  TensorView get(const std::string& name, const Shape& expected, DType wanted) const;

  // Several tensors as one, joined along axis 0 (q, k, v weights [d, d] → [3d, d]). Always a copy.
  TensorView get_fused(const std::vector<std::string>& names, const std::vector<Shape>& expected, DType wanted) const;

  void will_need(const std::string& name) const;  // prefetches a mapped tensor
  void release(const std::string& name) const;    // releases its mapped pages; views stay valid
  void require_unchanged() const;                 // see WeightSource
  // Parts of the packed weights to be read as they are used, after a WeightLoader; null without Loading::memory and
  // Loading::shards. What is in no part stays in memory. Throws Error where the memory is too small. Valid as long as
  // the Weights.
  std::unique_ptr<WeightStream> stream(std::vector<WeightStream::Part> parts) const;
  size_t copied_bytes() const;  // of small tensors, conversions, joins and packed weights
  bool lie_in_cache() const;  // all packed weights are mapped from the file of a cache: nothing was allocated for them

 private:
  friend class WeightLoader;
  struct Cache;
  void check(const std::string& name, const Shape& expected, DType wanted) const;

  std::shared_ptr<const WeightSource> source_;
  Loading loading_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace zoetrope::io
