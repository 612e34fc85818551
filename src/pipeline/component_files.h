// Weights of a component in a file of their own, in any layout and format that people have: what the file is, and its
// tensors under the names of the hub's folders. docs/spec/weights.md, sections 1 to 3.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/checkpoint.h"
#include "io/named_source.h"
#include "io/tensor_table.h"
#include "io/weights.h"

namespace zoetrope::pipeline {

// Published names of weight files, without their endings.
inline constexpr const char* kDiffusersStem = "diffusion_pytorch_model";  // transformer, VAE
inline constexpr const char* kTextEncoderStem = "model";                  // and image encoder
const char* stem_of(const std::string& component);

// A component with weights, as its config describes it.
struct Component {
  std::string name;  // the folder, and the key that names a file
  std::string stem;  // of its weight files in a folder
  io::TensorTable tensors;
  io::FileRules files = {};  // what other layouts of it may hold
};

// A component that has weights. `class_name` is that of model_index.json, `config` the component's own.
Component component_of(const std::string& name, const std::string& class_name, const JsonObject& config);

// The components with weights that a run of the model with these configs reads, with their classes.
std::map<std::string, std::string> components_with_weights(const std::filesystem::path& configs);

// What a run needs of it, by its config in `configs`: of the image encoder not all.
io::TensorTable used_tensors(const Component& component, const std::filesystem::path& configs);

enum class FileKind { kTransformer, kTextEncoder, kVae, kImageEncoder, kLora };
const char* kind_text(FileKind kind);  // "a transformer"

// By GGUF's general.architecture and the names of tensors. Throws Error for what is none of these, and says what it is
// where that is known.
FileKind kind_of(const io::Checkpoint& checkpoint);

// The dtype that most of its bytes are of, of those that weights are read from in place; F32 where that is another.
DType main_dtype(const io::Checkpoint& checkpoint);
int64_t checkpoint_bytes(const io::Checkpoint& checkpoint);

// A file, or a component's folder in the layout of the hub. Throws Error where it is another component.
io::Checkpoint open_component(const std::filesystem::path& path, const Component& component);

// What the checkpoint calls the component's tensors; `used` must be there, each in its shape and without anything left
// over.
io::NamesInFile names_of(const io::Checkpoint& checkpoint, const Component& component, const io::TensorTable& used);

// A component by itself, not as a part of an opened model.
struct ComponentAlone {
  io::Checkpoint checkpoint;
  Component component;
  io::NamesInFile names;
  std::filesystem::path config;  // that describes it
};
// Of an image encoder in a file of its own, where the projection may be there or not.
inline constexpr const char* kClassOfImageEncoder = "CLIPVisionModelWithProjection";

// `path`: a component's folder with its config.json, or a file. `model`: a folder with configs, or a name of configs/,
// whose component a file is; empty: the known model that has its tensors. Throws Error for a folder of another kind,
// for a file of no component or of none of these models, and where tensors are missing or left over.
ComponentAlone open_alone(const std::filesystem::path& path, const std::string& model);

// Names of configs/ whose component has these tensors: what the file is by its shapes, and for the transformer almost
// always which model. Files of the two experts of a model, and of models that differ in training alone, are alike.
std::vector<std::string> models_with(const io::Checkpoint& checkpoint, FileKind kind);
// Of a file whose component no known model has: what to do, the model that most of its tensors fit, and the first that
// does not.
std::string why_of_no_model(const io::Checkpoint& checkpoint, FileKind kind);

// The one that a transformer belongs to where nobody names a model; `second`: of the other expert, or empty; `whole`:
// it is no expert. Throws Error for files of no such model, for one expert of two, and where models of the same shapes
// are told apart by no name on the path.
std::string model_of(const std::filesystem::path& transformer, const std::filesystem::path& second, bool whole = false);
// Whether by their names the first is the expert of high noise, and the second that of low noise.
bool are_experts(const std::filesystem::path& high, const std::filesystem::path& low);
// Error where `transformer` and `second` are the same file, or the name of one says that it is the other expert.
void require_experts_in_order(const std::filesystem::path& transformer, const std::filesystem::path& second);

}  // namespace zoetrope::pipeline
