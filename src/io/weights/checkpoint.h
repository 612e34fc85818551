// A folder of weights as the hub publishes it: one safetensors file, or shards with an index. Knows names, shapes and
// bytes, but not what a tensor is for; conversion to the compute dtype is in weights.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/weights/tensor_file.h"

namespace zoetrope {
class JsonObject;
}

namespace zoetrope::io {

struct DTypeCount {
  int64_t tensors = 0;
  int64_t elements = 0;
  uint64_t bytes = 0;
};

// Immutable and cheap to copy; views stay valid as long as any copy lives.
class Checkpoint {
 public:
  // Opens FOLDER/STEM.safetensors.index.json with the shards it names, else FOLDER/STEM.safetensors. The index decides
  // where a tensor is; tensors that it does not name are ignored. Published stems: "diffusion_pytorch_model"
  // (transformer, VAE) and "model" (encoders).
  static Checkpoint open(const std::filesystem::path& folder, const std::string& stem);
  static bool exists(const std::filesystem::path& folder, const std::string& stem);  // whether open() finds files
  static Checkpoint open_file(const std::filesystem::path& file);                    // one file by its own name
  static Checkpoint of(std::shared_ptr<const TensorFile> file);
  // Throws Error where the folder has shards, of which no index says what they hold.
  static void refuse_shards_alone(const std::filesystem::path& folder, const std::string& stem);

  const std::filesystem::path& folder() const { return contents_->folder; }
  // The file, of several their folder.
  std::filesystem::path place() const {
    return contents_->files.size() == 1 ? contents_->files.front()->path() : contents_->folder;
  }
  const std::filesystem::path& index() const { return contents_->index; }  // empty where there is none
  const std::vector<std::shared_ptr<const TensorFile>>& files() const { return contents_->files; }
  bool contains(const std::string& name) const;
  std::vector<std::string> names() const;                   // sorted
  const TensorInfo& info(const std::string& name) const;    // absent: Error naming the tensor and the nearest names
  TensorView view(const std::string& name) const;           // mapped, read-only; see TensorFile::tensor
  const TensorFile& holder(const std::string& name) const;  // the file that holds the tensor; absent: as info()
  const std::filesystem::path& file(const std::string& name) const;  // its path
  void will_need(const std::string& name) const;
  void release(const std::string& name) const;  // see TensorFile::release
  void require_unchanged() const;               // of every file, see TensorFile
  std::string identity() const;                 // one line per file

  uint64_t bytes() const;                            // of tensor data
  std::map<std::string, DTypeCount> dtypes() const;  // by the name the files use

 private:
  struct Contents {
    std::filesystem::path folder, index;
    std::vector<std::shared_ptr<const TensorFile>> files;
    std::map<std::string, const TensorFile*> tensors;
  };
  explicit Checkpoint(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  std::shared_ptr<const Contents> contents_;
};

// Refuses a config.json whose weights are quantised: those are other tensors than the sizes in it imply.
void require_unquantized(const JsonObject& config);

}  // namespace zoetrope::io
