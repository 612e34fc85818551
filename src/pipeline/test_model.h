// For the tests of this module: recorded checkpoint folders, copies of them that may be changed, and small runs.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/project_folders.h"
#include "base/test_folder.h"
#include "io/weights/safetensors.h"
#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

inline std::filesystem::path recorded_model(const std::string& name) {
  return std::filesystem::path(kSourceFolder) / "tests" / "golden" / "pipelines" / name;
}

// A video in a moment.
inline GenerateOptions small_run() {
  GenerateOptions options;
  options.hardware = "cpu";  // says what a step takes
  options.threads = 2;
  options.prompt = "a red cat";
  options.height = 32;
  options.width = 48;
  options.num_frames = 5;
  options.num_inference_steps = 2;
  options.model = recorded_model("wan21_t2v").string();
  return options;
}

// What is loaded during a run, as Callbacks::load tells it.
struct Loads {
  Loads() {
    callbacks.load = [this](const std::string& component, int64_t done, int64_t total) {
      if (done == total && total > 0) components.push_back(component);
    };
  }
  std::vector<std::string> components;
  Callbacks callbacks;
};

class ModelCopy {
 public:
  explicit ModelCopy(const std::string& name) {
    namespace fs = std::filesystem;
    for (const auto& entry : fs::directory_iterator(recorded_model(name))) {
      if (!entry.is_directory() && entry.path().filename() != "model_index.json") continue;
      fs::copy(entry.path(), path() / entry.path().filename(), fs::copy_options::recursive);
    }
  }

  const std::filesystem::path& path() const { return folder_.path(); }

  // The first place of `from` becomes `to`; anything else in the file stays.
  void replace(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = file_bytes(folder_ / file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << file << " has no " << from;
    folder_.write(file, text.replace(at, from.size(), to));
  }

  // Rewrites a component's weights, tensors in `shapes` with other axes over the same elements.
  void reshape(const std::string& component, const std::map<std::string, Shape>& shapes) const {
    const auto file = path() / component / "diffusion_pytorch_model.safetensors";
    const auto stored = io::TensorFile::open(file);
    io::SafetensorsWriter writer;
    for (const auto& [name, info] : stored->tensors()) {
      const auto other = shapes.find(name);
      writer.add(name, other == shapes.end() ? stored->tensor(name) : stored->tensor(name).reshape(other->second));
    }
    writer.write(file);  // beside the mapped one, whose place it then takes
  }

 private:
  TestFolder folder_;
};

}  // namespace zoetrope::pipeline
