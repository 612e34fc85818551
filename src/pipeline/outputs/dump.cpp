#include "pipeline/outputs/dump.h"

#include <algorithm>
#include <cstring>

#include "base/atomic_file.h"
#include "base/error.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

Dump::Dump(const std::string& folder) : folder_(folder) {
  if (folder.empty()) return;
  try {
    made_.emplace(folder_);
    check_writable(dump_file(folder_));  // tried now, and not after the run
  } catch (const Error& error) {
    fail("dump={}: {}", folder, error.what());
  }
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

void Dump::prepare() {
  if (!on()) return;
  io::SafetensorsWriter writer;
  for (const auto& [name, tensor] : tensors_) writer.add(name, tensor);
  prepared_.emplace(writer.prepare(dump_file(folder_)));
  tensors_.clear();  // a comparison may follow, with weights of its own
}

void Dump::commit() {
  if (prepared_) prepared_->commit();
  prepared_.reset();
}

bool Dumps::on() const {
  return std::ranges::any_of(all_, [](const Dump* dump) { return dump->on(); });
}

void Dumps::add(const std::string& name, const TensorView& tensor) const {
  for (Dump* dump : all_) dump->add(name, tensor);
}

}  // namespace zoetrope::pipeline
