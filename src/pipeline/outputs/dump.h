// dump=FOLDER: the tensors of a run under the names of the recorded reference runs, for parity checks.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zoetrope/tensor.h"

#include "base/folders.h"
#include "io/weights/safetensors.h"

namespace zoetrope::pipeline {

// Collects copies for FOLDER/run.safetensors, all or nothing. Without a folder it does nothing. prepare() writes the
// file, commit() only gives it its name: a run that is interrupted in between leaves neither dump nor clip.
class Dump {
 public:
  // Throws Error where the folder cannot be made or written.
  explicit Dump(const std::string& folder);
  Dump(const Dump&) = delete;
  Dump& operator=(const Dump&) = delete;
  bool on() const { return !folder_.empty(); }
  void add(const std::string& name, const TensorView& tensor);  // contiguous F32 or U8
  // A tensor that is filled piece by piece; null while off.
  TensorView reserve(const std::string& name, DType dtype, const Shape& shape);
  void prepare();
  void commit();

 private:
  std::filesystem::path folder_;
  std::optional<MadeFolder> made_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
  std::optional<io::SafetensorsStream> prepared_;
};

// Those of the videos of a batch, each of which gets what they share. They must outlive this.
class Dumps {
 public:
  explicit Dumps(std::vector<Dump*> all) : all_(std::move(all)) {}
  bool on() const;  // any of them
  void add(const std::string& name, const TensorView& tensor) const;
  Dumps of(size_t video) const { return Dumps({all_[video]}); }

 private:
  std::vector<Dump*> all_;
};

}  // namespace zoetrope::pipeline
