// Weights of a component in a file of their own, in any layout and format that people have: what the file is, and its
// tensors under the names of the hub's folders (docs/spec/weights.md, sections 1 to 3). known_models.h says of which
// model they are.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "io/weights/checkpoint.h"
#include "io/weights/named_source.h"
#include "io/weights/tensor_table.h"
#include "io/weights/weights.h"

namespace zoetrope::pipeline {

// Published names of weight files, without their endings.
inline constexpr const char* kDiffusersStem = "diffusion_pytorch_model";  // transformer, VAE
inline constexpr const char* kTextEncoderStem = "model";                  // and image encoder
const char* stem_of(const std::string& component);

// A component with weights, as its config describes it.
struct Component {
  std::string name;  // the folder, and the key that names a file
  std::string stem;  // of its weight files in a folder
  io::TensorTable tensors = {};
  io::TensorTable used = {};  // what a run needs: of an image encoder not all
  io::FileRules files = {};   // what other layouts of it may hold
};

enum class FileKind { kTransformer, kTextEncoder, kVae, kImageEncoder, kLora };
const char* kind_text(FileKind kind);  // "a transformer"

// By GGUF's general.architecture and the names of tensors. Throws Error for what is none of these, and says what it is
// where that is known.
FileKind kind_of(const io::Checkpoint& checkpoint);

// The dtype that most of its bytes are of, of those that weights are read from in place; F32 where that is another.
DType main_dtype(const io::Checkpoint& checkpoint);
int64_t checkpoint_bytes(const io::Checkpoint& checkpoint);

// A folder's weights by either stem. Throws Error where it holds none.
io::Checkpoint open_folder(const std::filesystem::path& folder);

// A file, or a component's folder in the layout of the hub. Throws Error where it is another component.
io::Checkpoint open_component(const std::filesystem::path& path, const Component& component);

// The config.json that describes a component of the model in `folder`: next to the weights where `named`, files by
// their component, has a folder of the hub for it, else the model's own.
std::filesystem::path config_of(const std::filesystem::path& folder,
                                const std::map<std::string, std::filesystem::path>& named,
                                const std::string& component);

// What the checkpoint calls the component's tensors; `used` must be there, each in its shape and without anything left
// over.
io::NamesInFile names_of(const io::Checkpoint& checkpoint, const Component& component, const io::TensorTable& used);

}  // namespace zoetrope::pipeline
