// Which of the known models (configs/) a file's weights are of, by its tensors, and where those are alike by its name.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "io/weights/checkpoint.h"
#include "io/weights/named_source.h"
#include "pipeline/model_files/component_files.h"

namespace zoetrope::pipeline {

// A component by itself, not as a part of an opened model.
struct ComponentAlone {
  io::Checkpoint checkpoint;
  Component component;
  io::NamesInFile names;
  std::filesystem::path config;  // that describes it
};
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
// What a file's name says of the two experts: "high_noise" or "HighNoise", else the word "high" or "LOW" by itself.
enum class Expertise { kUnknown, kHighNoise, kLowNoise };
Expertise expertise_of(const std::filesystem::path& file);
// Whether by their names the first is the expert of high noise, and the second that of low noise.
bool are_experts(const std::filesystem::path& high, const std::filesystem::path& low);
// Error where `transformer` and `second` are the same file, or the name of one says that it is the other expert.
void require_experts_in_order(const std::filesystem::path& transformer, const std::filesystem::path& second);

}  // namespace zoetrope::pipeline
