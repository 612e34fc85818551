// zoetrope inspect: what is in a checkpoint folder, and what is missing or unexpected; of a folder with configs alone,
// what they ask for. Then what a run would hold in memory. Of a single file of weights, what it holds.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"
#include "base/options.h"
#include "base/print.h"
#include "base/words.h"
#include "cli/command.h"
#include "cli/inspect_memory.h"
#include "io/weights/checkpoint.h"
#include "io/weights/weights.h"
#include "pipeline/model_files/comfy_folder.h"
#include "pipeline/model_files/component_files.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/known_models.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/model_files/original_repository.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/settings/run_settings.h"

namespace zoetrope::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostNames = 8;

void print_names(const char* what, const std::vector<std::string>& names) {
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) print("    {}: {}\n", what, printable(names[i]));
  if (names.size() > kMostNames) print("    {}: … and {} more\n", what, names.size() - kMostNames);
}

std::string dtypes_text(const io::Checkpoint& checkpoint) {
  std::string text;
  for (const auto& [dtype, count] : checkpoint.dtypes())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count.tensors, dtype);
  return text;
}

// Without the scales of quantised ones. Tensors that cannot be read are said by whoever opens them.
std::string parameters_text(const io::Checkpoint& checkpoint) try {
  const auto source = io::checkpoint_source(checkpoint);
  int64_t parameters = 0;
  for (const std::string& name : source->names()) parameters += source->info(name).shape.size();
  return fmt::format("{} parameters, ", parameters);
} catch (const Error&) {
  return "";
}

std::string bytes_text(const io::Checkpoint& checkpoint) {
  return fmt::format("{}{:.3f} GB", parameters_text(checkpoint), static_cast<double>(checkpoint.bytes()) * 1e-9);
}

// Throws Error for the first value that is NaN or infinite, as generate reads them.
void check_values(const io::Checkpoint& checkpoint) {
  constexpr int64_t kPiece = int64_t{1} << 20;  // elements
  const auto source = io::checkpoint_source(checkpoint);
  int64_t values = 0;
  std::set<std::string> unread;
  for (const std::string& name : source->names()) {
    const io::TensorInfo info = source->info(name);
    if (!io::is_readable(info)) {
      unread.insert(info.dtype_name);
      continue;
    }
    const int64_t size = info.shape.size(), step = source->reads_parts(name) ? std::min(kPiece, size) : size;
    const Tensor piece = Tensor::uninitialized(DType::kF32, {step});
    for (int64_t at = 0; at < size; at += step) {
      const TensorView part = piece.view().slice(0, 0, std::min(step, size - at));
      source->read_range(name, {at, at + part.size()}, part);
      const float* const first = part.data<float>();
      const float* const bad = std::find_if(first, first + part.size(), [](float x) { return !std::isfinite(x); });
      if (bad == first + part.size()) continue;
      fail("{}: tensor '{}' holds {} at element {}, by a damaged value or scale; download the file again",
           source->where(name), name, *bad, at + (bad - first));
    }
    source->release(name);
    values += size;
  }
  print("  {} values are finite{}\n", values,
        unread.empty() ? "" : fmt::format("; not read: those stored as {}", fmt::join(unread, ", ")));
}

// How generate takes it. `model`: whose component it is to be; empty: a known one's. Throws Error for what it does not.
std::string use_of(const io::Checkpoint& file, const std::string& model) {
  const pipeline::FileKind kind = pipeline::kind_of(file);
  const std::string what = pipeline::kind_text(kind);
  if (!model.empty()) {
    pipeline::open_alone(file.place(), model);
    return fmt::format("{} of {}", what, printable(model));
  }
  if (kind == pipeline::FileKind::kLora) return "a LoRA file: pass it with lora=";
  const std::vector<std::string> models = pipeline::models_with(file, kind);
  if (models.empty()) return what + "; " + pipeline::why_of_no_model(file, kind);
  return fmt::format("{} of {}", what, fmt::join(models, ", "));
}

// What a single file of weights holds, or several that belong together, and of which models it is.
void print_weights(const io::Checkpoint& checkpoint, bool with_values, const std::string& model) {
  constexpr size_t kLongestValue = 80;
  const io::TensorFile& file = *checkpoint.files().front();
  const size_t files = checkpoint.files().size();
  print("{}: {}{}, {} tensors ({}), {}\n", printable(checkpoint.place().string()), file.container(),
        files == 1 ? "" : fmt::format(" in {} files", files), checkpoint.names().size(), dtypes_text(checkpoint),
        bytes_text(checkpoint));
  for (const auto& [key, value] : file.metadata()) {
    const bool cut = value.size() > kLongestValue;
    print("  {} = {}{}\n", printable(key), printable(value.substr(0, kLongestValue)), cut ? "…" : "");
  }
  if (with_values) check_values(checkpoint);
  print("  {}\n", use_of(checkpoint, model));
}

class Inspection {
 public:
  // `files`: of components, instead of the folder's.
  Inspection(fs::path folder, std::map<std::string, fs::path> files)
      : folder_(std::move(folder)), files_(std::move(files)) {}

  // Prints every component; false where one cannot be used.
  bool run() {
    const auto index = pipeline::model_index(folder_);
    print("{}: {}", printable(folder_.string()), printable(index.class_name));
    if (index.boundary_ratio) print(", boundary_ratio {}", *index.boundary_ratio);
    configs_only_ = true;
    for (const char* name : {"transformer", "text_encoder", "vae"})
      configs_only_ &= !io::Checkpoint::exists(folder_ / name, pipeline::stem_of(name));
    const bool as_published = configs_only_ && files_.empty();
    print("{}\n", as_published ? "; configs without weights: parameters, and bytes as published" : "");
    bool whole = true;
    for (const auto& [name, component] : index.components) whole &= inspect(name, component.class_name);
    return whole;
  }

 private:
  bool inspect(const std::string& name, const std::string& class_name) {
    if (name == "scheduler" || name == "tokenizer" || name == "image_processor") {
      // That of a single file may be in it; what opens the model says where none is.
      const bool in_file = name == "tokenizer" && files_.count("text_encoder") != 0;
      const bool there = configs_only_ || in_file || is_folder(folder_ / name);
      print("  {:<14} {}{}\n", name, printable(class_name), there ? "" : "  (the folder is missing)");
      return there;
    }
    const auto config = JsonObject::load(pipeline::config_of(folder_, files_, name));
    const bool in_file = name == "image_encoder" && files_.count(name) != 0;
    return weights(pipeline::component_of(name, in_file ? pipeline::kClassOfImageEncoder : class_name, config));
  }

  bool weights(const pipeline::Component& component) {
    const std::string& name = component.name;
    const io::TensorTable& expected = component.tensors;
    const io::TensorTotals totals = io::totals(expected);
    const auto named = files_.find(name);
    if (named != files_.end()) {
      const io::Checkpoint file = pipeline::open_component(named->second, component);
      print("  {:<14} {:>5} tensors in {} ({}), {}\n", name, file.names().size(), printable(named->second.string()),
            dtypes_text(file), bytes_text(file));
      pipeline::names_of(file, component, component.used);
      return true;
    }
    if (configs_only_) {
      const DType stored = pipeline::published_dtype(JsonObject::load(pipeline::config_of(folder_, files_, name)));
      print("  {:<14} {:>5} tensors, {} parameters, {:.3f} GB in {}\n", name, totals.tensors, totals.parameters,
            static_cast<double>(totals.bytes(stored)) * 1e-9, dtype_name(stored));
      return true;
    }
    const io::Checkpoint checkpoint = io::Checkpoint::open(folder_ / name, component.stem);
    print("  {:<14} {:>5} tensors in {} ({}), {}\n", name, checkpoint.names().size(),
          counted(static_cast<int64_t>(checkpoint.files().size()), "file"), dtypes_text(checkpoint),
          bytes_text(checkpoint));
    const auto stored = io::checkpoint_source(checkpoint);
    const io::TensorDefects defects = io::tensor_defects(*stored, expected);
    const std::vector<std::string> unexpected = io::unexpected_weights(*stored, expected, component.files);
    print_names("missing", defects.missing);
    print_names("wrong shape", defects.misshapen);
    print_names("unknown dtype", defects.unreadable);
    print_names("unexpected", unexpected);
    print(
        "    the config asks for {} tensors, {} parameters: {} missing, {} of wrong shape, {} of unknown dtype, {} "
        "unexpected\n",
        totals.tensors, totals.parameters, defects.missing.size(), defects.misshapen.size(), defects.unreadable.size(),
        unexpected.size());
    return defects.none() && unexpected.empty();
  }

  fs::path folder_;
  std::map<std::string, fs::path> files_;
  bool configs_only_ = false;
};

// The memory of a run; a model that `generate` would refuse with the same keys is an Error after all is said.
void print_memory(const std::string& model, const fs::path& configs, const std::vector<std::string>& words,
                  comm::Communicator* world) {
  const MemoryLines memory = memory_lines(model, configs, words, world);
  if (world == nullptr || world->rank() == 0) print("{}", memory.text);
  if (!memory.admitted) fail("{}: refused here; see the last line above", configs.string());
}

// The model as `generate` takes it with the same keys.
pipeline::GenerateOptions options_of(const std::string& model, const std::vector<std::string>& words) {
  pipeline::GenerateOptions options;
  OptionSet set = pipeline::describe_options(options);
  for (const std::string& word : words) {
    const std::string key = word.substr(0, word.find('='));
    if (pipeline::file_keys().count(key) != 0) set.set_argument(word);
  }
  options.model = model;
  return pipeline::with_found_files(options);
}

// A folder of weights that is no model: a component's.
bool is_weights_alone(const fs::path& folder) {
  if (is_there(folder / "model_index.json") || pipeline::is_comfy_folder(folder)) return false;
  // A transformer of the authors has a config as their repository does, but no tokenizer.
  if (pipeline::is_original_repository(folder) && is_there(folder / "google")) return false;
  return io::Checkpoint::exists(folder, pipeline::kTextEncoderStem) ||
         io::Checkpoint::exists(folder, pipeline::kDiffusersStem);
}

// Of a single file, or a component's folder.
OptionSet describe_file_options(bool& check_values) {
  OptionSet set;
  set.flag("check_values", check_values,
           "read every value, quantised ones too, and end with an error that names the first NaN or infinity");
  return set;
}

int run(const std::vector<std::string>& arguments, comm::Communicator* world) {
  std::vector<std::string> models, named, words;
  constexpr std::string_view kModel = "model=";
  for (const std::string& argument : arguments) {
    if (!pipeline::config_file(argument).empty())
      fail("command line: {}: inspect takes a model and keys; `zoetrope plan` takes YAML files, and says memory too",
           argument);
    if (argument.starts_with(kModel)) named.push_back(argument.substr(kModel.size()));
    else (argument.find('=') == std::string::npos ? models : words).push_back(argument);
  }
  if (models.empty()) models.swap(named);
  if (models.size() != 1 || named.size() > 1)
    fail("inspect takes one checkpoint folder: zoetrope inspect MODEL_DIR [key=value…]");
  const bool file = fs::is_regular_file(models[0]);
  const bool weights = file || is_weights_alone(models[0]);
  if (!named.empty() && !weights)
    fail("model={}: {} is no file of weights or folder of a component; leave the key out", named[0], models[0]);
  if (weights) {
    bool with_values = false;
    OptionSet set = describe_file_options(with_values);
    for (const std::string& word : words) set.set_argument(word);
    if (world != nullptr && world->rank() != 0) return 0;
    print_weights(file ? io::Checkpoint::open_file(models[0]) : pipeline::open_folder(models[0]), with_values,
                  named.empty() ? "" : named[0]);
    return 0;
  }
  const pipeline::GenerateOptions options = options_of(models[0], words);
  const fs::path folder = pipeline::model_or_config(options.model);
  Inspection inspection(folder, pipeline::named_files(options));
  if (world == nullptr || world->rank() == 0) {
    if (!inspection.run()) fail("{}: the checkpoint cannot be used; see the lines above", folder.string());
  }
  print_memory(models[0], folder, words, world);
  return 0;
}

std::string help() {
  bool check_values = false;
  return fmt::format(
      "MODEL_DIR is a checkpoint folder, a folder with its configs alone, ComfyUI's folder of models, or a name of "
      "configs/. Prints components, tensor\ncounts, dtypes, bytes and parameters; then what a run would hold in memory "
      "in each of its phases, and whether this\nmachine has it. Ends with an error where generate would refuse the "
      "model with the same keys, which are those of generate\nas far as memory depends on them: sizes (with max_area "
      "the picture's), dtypes, LoRA files, the step cache, pictures and\nvideos that are given, ranks, memory_limit. "
      "Others are refused. Reads no weights but LoRA files.\n"
      "Of a single safetensors or GGUF file, or the folder of a component, it prints tensor counts, types, bytes and "
      "metadata,\nand of which known model it is; with model=MODEL_DIR it is compared with that one.\n\n"
      "Key for these:\n{}\n"
      "Example:\n  zoetrope inspect wan2.1_t2v_14b height=720 width=1280 num_frames=81 ranks=4\n",
      describe_file_options(check_values).help());
}

}  // namespace

const Command kInspect = {"inspect",
                          "MODEL_DIR key=value…",
                          "Say what a checkpoint folder holds and lacks, and what memory a run needs",
                          help,
                          nullptr,
                          run,
                          true};

}  // namespace zoetrope::cli
