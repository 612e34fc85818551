// A model's parameters in the dtype it computes with, shared by every rank of the process: the mapped file where it can
// be used in place, else one converted copy, made once. Where the parameters come from is behind WeightSource.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/index_range.h"
#include "io/checkpoint.h"

namespace zoetrope::io {

// Whether its values can be computed with: F32, BF16, F16 or F64.
bool is_readable(const TensorInfo& info);

// Immutable once made; every function may be called from any thread.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool contains(const std::string& name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  virtual TensorInfo info(const std::string& name) const = 0;    // absent: Error
  virtual std::string where(const std::string& name) const = 0;  // the file, for errors; of no tensor: the folder
  virtual TensorView mapped(const std::string& name) const = 0;  // usable in place as stored, else a null view
  virtual void read(const std::string& name,
                    const TensorView& out) const = 0;  // all values, in out's dtype; contiguous
  // Elements `range` of the tensor, counted row by row, on the calling thread; contiguous. The default reads all.
  virtual void read_range(const std::string& name, IndexRange range, const TensorView& out) const;
  virtual void will_need(const std::string&) const {}
  // The tensor is not needed for a while: its pages are let go. What mapped() gave stays valid.
  virtual void release(const std::string&) const {}
  virtual void require_unchanged() const {}  // Error where a file is not what it was when it was opened
  // Tells these values from all others, across programs; empty where that cannot be said.
  virtual std::string identity() const { return {}; }
};

// A large tensor is read and converted by `threads` threads, of which the caller is one; the values are the same.
std::shared_ptr<const WeightSource> checkpoint_source(Checkpoint checkpoint, int threads = 1);

// Parameters by formula instead of by file (formula_source.h): the file holds
// {"seed": s, "tensors": {name: {"shape": […], "offset": o, "amplitude": a}}}.
std::shared_ptr<const WeightSource> procedural_source(const std::filesystem::path& weights_json, int threads = 1);

// What a model computes with, made of one or more stored tensors: converted, joined, packed for a multiplication. Made
// by a WeightLoader (weight_loader.h).
struct DerivedForm {
  std::vector<std::string> names;  // the stored tensors, in the order `make` takes them
  std::vector<Shape> shapes;       // that they must have
  std::string form;  // says what is made of them ("bf16", "f32.columns64"); with the names the cache's key
  size_t bytes = 0;  // of the result
  // Fills `out` (64-byte aligned) from the tensors as stored, contiguous, F32, BF16, F16 or F64. Runs on one thread;
  // several forms are made at the same time.
  std::function<void(std::span<const TensorView> stored, std::byte* out)> make;
};

class WeightCache;

class Weights {
 public:
  explicit Weights(Checkpoint checkpoint, int threads = 1);
  explicit Weights(std::shared_ptr<const WeightSource> source);
  // What follows is for a WeightLoader. `cache`: where derived forms are kept on disk (weight_cache.h), or null.
  // `progress` is told the bytes of stored tensors that are made, on the thread that loads.
  struct Loading {
    std::shared_ptr<WeightCache> cache;
    std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;
  };
  Weights(std::shared_ptr<const WeightSource> source, Loading loading);
  Weights(Weights&&) noexcept;
  ~Weights();

  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;
  TensorInfo info(const std::string& name) const;

  // Contiguous and aligned for its type; the same memory on every call with the same name and dtype, valid as long as
  // the Weights. `wanted` is F32 or BF16 (any stored float is converted, by way of float32, to nearest even) or the
  // stored dtype itself. The view must not be written to. A missing tensor or another shape is an Error that names
  // file, tensor and both shapes.
  TensorView get(const std::string& name, const Shape& expected, DType wanted) const;

  // Several tensors as one, joined along axis 0 (q, k, v weights [d, d] → [3d, d]). Always a copy, made once.
  TensorView get_fused(const std::vector<std::string>& names, const std::vector<Shape>& expected, DType wanted) const;

  void will_need(const std::string& name) const;  // starts reading a mapped tensor ahead of its first use
  void release(const std::string& name) const;    // lets its mapped pages go; views stay valid
  void require_unchanged() const;                 // see WeightSource
  size_t copied_bytes() const;                    // memory held by conversions, joins and derived forms so far

 private:
  friend class WeightLoader;
  struct Cache;
  void check(const std::string& name, const Shape& expected, DType wanted) const;

  std::shared_ptr<const WeightSource> source_;
  Loading loading_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace zoetrope::io
