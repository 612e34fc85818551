#include "zoetrope/error.h"

#include "io/weights/tensor_file.h"
#include "safetensors_changes.h"

namespace zoetrope::fuzz {
namespace {

void read(const std::string& bytes) {
  const auto file = io::TensorFile::open(write("input.safetensors", bytes));
  for (const auto& [name, info] : file->tensors()) {
    file->will_need(name);
    try {
      const TensorView flat = file->flat(name);
      touch(flat.raw(), flat.bytes());
      file->tensor(name);
    } catch (const Error&) {  // of a dtype that is only listed, or of too many axes
    }
    file->release(name);
  }
  file->require_unchanged();
}

}  // namespace

const Target kTarget{read, changed_safetensors, kSafetensorsHeaderErrors};

}  // namespace zoetrope::fuzz
