#include "pipeline/dump.h"

#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"
#include "io/safetensors.h"

namespace zoetrope::pipeline {
namespace {

constexpr const char* kFile = "run.safetensors";

}  // namespace

Dump::Dump(const std::string& folder) : folder_(folder) {
  if (folder.empty()) return;
  std::error_code error;
  made_folder_ = std::filesystem::create_directories(folder_, error);
  if (made_folder_) unfinished_ = UnfinishedPath(folder_.string(), UnfinishedPath::Kind::kFolder);
  if (error || !std::filesystem::is_directory(folder_)) fail("dump={}: the folder cannot be made there", folder);
  check_writable(folder_ / kFile);  // tried now, and not after the run
}

Dump::~Dump() {
  std::error_code ignored;
  if (made_folder_) std::filesystem::remove(folder_, ignored);
}

TensorView Dump::reserve(const std::string& name, DType dtype, const Shape& shape) {
  if (!on()) return {};
  tensors_.emplace_back(name, Tensor(dtype, shape));
  return tensors_.back().second;
}

void Dump::add(const std::string& name, const TensorView& tensor) {
  if (!on()) return;
  ZT_CHECK(tensor.contiguous());
  std::memcpy(reserve(name, tensor.dtype(), tensor.shape()).raw(), tensor.raw(), tensor.bytes());
}

void Dump::write() {
  if (!on()) return;
  io::SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors_) writer.add(name, tensor);
  writer.write(folder_ / kFile);
  made_folder_ = false;
  unfinished_.forget();
  tensors_.clear();  // a comparison may follow, with weights of its own
}

}  // namespace zoetrope::pipeline
