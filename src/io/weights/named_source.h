// A component's weights from files with other names: of the original code, of ComfyUI, of llama.cpp. Gives them the
// names and shapes of the hub's folders. What a tensor is called elsewhere stands in its table (tensor_table.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/weights/tensor_table.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

// What a component's files may hold besides its table.
struct FileRules {
  std::vector<std::string_view> prefixes;              // of all its names; the first that occurs is taken off
  bool (*ignored)(const std::string& name) = nullptr;  // tensors that are not used, by their names without the prefix
};

// How the files name each tensor of a table. Refers to no source.
struct NamesInFile {
  struct Place {
    TensorAlias in_file;  // its name has the prefix
    Shape shape;          // in the table
  };
  std::string prefix;
  std::optional<NamingScheme> scheme;   // empty: that of the hub's folders
  std::map<std::string, Place> places;  // by the table's names
  size_t other_components = 0;          // tensors without the prefix
  size_t ignored = 0;                   // others of this component, which are no weights of the table
};

// `table` holds everything that files of this component may have. Throws Error, with the file's own names, where a
// tensor of `used` is missing, one has another shape (axes of extent 1 do not count), or weights are left over.
NamesInFile names_in_file(const WeightSource& stored, const TensorTable& table, const TensorTable& used,
                          const FileRules& rules);

// Weights in a component's folder of the hub's layout that neither the table has nor the rules ignore.
std::vector<std::string> unexpected_weights(const WeightSource& stored, const TensorTable& table,
                                            const FileRules& rules);
// Throws Error where there are some: the config asks for a smaller model than the folder holds, and that computes
// something else.
void refuse_unexpected(const WeightSource& stored, const TensorTable& table, const FileRules& rules);

// How many tensors of `used` have their name and shape in the file, whatever else is in it.
size_t count_in_file(const WeightSource& stored, const TensorTable& table, const TensorTable& used,
                     const FileRules& rules);

std::shared_ptr<const WeightSource> named_source(std::shared_ptr<const WeightSource> stored,
                                                 std::shared_ptr<const NamesInFile> names);

}  // namespace zoetrope::io
