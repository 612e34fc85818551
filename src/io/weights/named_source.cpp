#include "io/weights/named_source.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"

namespace zoetrope::io {
namespace {

Shape without_ones(const Shape& shape) {
  Shape rest;
  for (int axis = 0; axis < shape.rank(); ++axis)
    if (shape[axis] != 1) rest.append(shape[axis]);
  return rest;
}

// Names of parameters. A model computes something else without them.
bool is_weight(const std::string& name) {
  constexpr const char* kEndings[] = {"weight",  "bias",      "modulation",        "gamma",
                                      "emb_pos", "pos_embed", "scale_shift_table", "padding_tokens"};
  const std::string last = name.substr(name.rfind('.') + 1);
  return std::find(std::begin(kEndings), std::end(kEndings), last) != std::end(kEndings);
}

bool is_unexpected(const std::string& name, const std::set<std::string>& known, const FileRules& rules) {
  const bool ignored = rules.ignored != nullptr && rules.ignored(name);
  return is_weight(name) && known.count(name) == 0 && !ignored;
}

std::string first_of(const std::vector<std::string>& names) {
  constexpr size_t kMostNamed = 5;
  const size_t named = std::min(names.size(), kMostNamed);
  return fmt::format("{}{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                     named < names.size() ? ", …" : "");
}

class Names {
 public:
  Names(const WeightSource& stored, const FileRules& rules) : stored_(stored), rules_(rules) {
    std::vector<std::string> all = stored.names();
    for (const std::string_view prefix : rules.prefixes) {
      const auto has_it = [&](const std::string& name) { return name.starts_with(prefix); };
      if (std::none_of(all.begin(), all.end(), has_it)) continue;
      found_.prefix = prefix;
      break;
    }
    for (std::string& name : all) {
      if (name.starts_with(found_.prefix)) present_.insert(name.substr(found_.prefix.size()));
      else ++found_.other_components;
    }
  }

  NamesInFile find(const TensorTable& table, const TensorTable& used) {
    const std::set<std::string> known = find_places(table);
    for (const TensorSpec& spec : used) require(spec, used.size());
    refuse_others(known);
    for (const std::string& name : present_) found_.ignored += known.count(name) == 0;
    return std::move(found_);
  }

  size_t count(const TensorTable& table, const TensorTable& used) {
    find_places(table);
    return static_cast<size_t>(std::count_if(used.begin(), used.end(), [&](const TensorSpec& spec) {
      const auto found = found_.places.find(spec.name);
      return found != found_.places.end() && has_shape(found->second.in_file, spec.shape);
    }));
  }

 private:
  // Returns the names, without the prefix, that a file of this scheme may have.
  std::set<std::string> find_places(const TensorTable& table) {
    choose_scheme(table);
    std::set<std::string> known;
    for (const TensorSpec& spec : table) {
      TensorAlias place = place_of(spec);
      known.insert(place.name);
      if (!found_.scheme) known.insert(spec.name_in(NamingScheme::kTied));  // a second copy
      if (present_.count(place.name) == 0) continue;
      place.name = found_.prefix + place.name;
      found_.places[spec.name] = {std::move(place), spec.shape};
    }
    return known;
  }

  // The one that most of the file's names belong to.
  void choose_scheme(const TensorTable& table) {
    size_t most = 0;
    for (const auto scheme :
         {std::optional<NamingScheme>(), std::optional(NamingScheme::kOriginal), std::optional(NamingScheme::kOther)}) {
      const auto count = static_cast<size_t>(std::count_if(table.begin(), table.end(), [&](const TensorSpec& spec) {
        return present_.count(scheme ? spec.name_in(*scheme) : spec.name) != 0 ||
               (!scheme && present_.count(spec.name_in(NamingScheme::kTied)) != 0);
      }));
      if (count <= most) continue;
      most = count;
      found_.scheme = scheme;
    }
  }

  // Without the prefix.
  TensorAlias place_of(const TensorSpec& spec) const {
    TensorAlias place{spec.name};
    if (found_.scheme && !spec.alias(*found_.scheme).name.empty()) place = spec.alias(*found_.scheme);
    const std::string& tied = spec.name_in(NamingScheme::kTied);
    if (!found_.scheme && present_.count(place.name) == 0 && present_.count(tied) != 0) place.name = tied;
    return place;
  }

  void require(const TensorSpec& spec, size_t count) const {
    const auto found = found_.places.find(spec.name);
    if (found == found_.places.end()) {
      fail("{}: tensor '{}{}' is missing (have {} of {}); is this a part of a model, or another model?", where(),
           found_.prefix, place_of(spec).name, std::min(found_.places.size(), count), count);
    }
    const TensorAlias& place = found->second.in_file;
    if (has_shape(place, spec.shape)) return;
    fail("{}: tensor '{}' has shape {}, expected {}", where(), place.name, stored_.info(place.name).shape.to_string(),
         shape_in_file(place, spec.shape).to_string());
  }

  static Shape shape_in_file(const TensorAlias& place, Shape shape) {
    if (place.transposed) std::swap(shape[0], shape[1]);
    shape[0] *= place.parts;
    return shape;
  }

  bool has_shape(const TensorAlias& place, const Shape& shape) const {
    const Shape stored = without_ones(stored_.info(place.name).shape), wanted = shape_in_file(place, shape);
    return stored == without_ones(wanted) || (wanted.rank() == 5 && stored == without_ones(in_four_axes(wanted)));
  }
  // GGUF has four axes: stable-diffusion.cpp stores the outer two of five as one.
  static Shape in_four_axes(const Shape& s) { return {s[0] * s[1], s[2], s[3], s[4]}; }

  void refuse_others(const std::set<std::string>& known) const {
    std::vector<std::string> others;
    for (const std::string& name : present_) {
      if (is_unexpected(name, known, rules_)) others.push_back(found_.prefix + name);
    }
    if (others.empty()) return;
    fail("{}: holds {} tensors that this model does not have: {}", where(), others.size(), first_of(others));
  }

  std::string where() const { return stored_.where(stored_.names().empty() ? "" : stored_.names().front()); }

  const WeightSource& stored_;
  const FileRules& rules_;
  std::set<std::string> present_;  // without the prefix
  NamesInFile found_;
};

class NamedSource final : public WeightSource {
 public:
  NamedSource(std::shared_ptr<const WeightSource> stored, std::shared_ptr<const NamesInFile> names)
      : stored_(std::move(stored)), names_(std::move(names)) {}

  bool contains(const std::string& name) const override { return names_->places.count(name) != 0; }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& item : names_->places) names.push_back(item.first);
    return names;
  }
  TensorInfo info(const std::string& name) const override {
    const NamesInFile::Place& place = place_of(name);
    TensorInfo info = stored_->info(place.in_file.name);
    info.shape = place.shape;
    info.extents.clear();
    for (int axis = 0; axis < place.shape.rank(); ++axis) info.extents.push_back(place.shape[axis]);
    info.bytes /= static_cast<uint64_t>(place.in_file.parts);
    info.offset += info.bytes * static_cast<uint64_t>(place.in_file.part);
    return info;
  }
  std::string where(const std::string& name) const override {
    return stored_->where(contains(name) ? place_of(name).in_file.name : name);
  }
  TensorView mapped(const std::string& name) const override {
    const NamesInFile::Place& place = place_of(name);
    const TensorView whole = stored_->mapped(place.in_file.name);
    if (!whole || place.in_file.transposed) return {};
    const IndexRange part = part_of(place);
    return whole.reshape({whole.size()}).slice(0, part.begin, part.end).reshape(place.shape);
  }
  void read(const std::string& name, const TensorView& out) const override {
    const NamesInFile::Place& place = place_of(name);
    if (place.in_file.transposed) return read_transposed(place, out);
    if (place.in_file.parts == 1) return stored_->read(place.in_file.name, out);
    stored_->read_range(place.in_file.name, part_of(place), out);
  }
  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override {
    const NamesInFile::Place& place = place_of(name);
    if (place.in_file.transposed) return WeightSource::read_range(name, range, out);
    const int64_t begin = part_of(place).begin;
    stored_->read_range(place.in_file.name, {begin + range.begin, begin + range.end}, out);
  }
  bool reads_parts(const std::string& name) const override {
    const NamesInFile::Place& place = place_of(name);
    return !place.in_file.transposed && stored_->reads_parts(place.in_file.name);
  }
  std::optional<Int8Codes> int8_codes(const std::string& name) const override {
    const NamesInFile::Place& place = place_of(name);
    if (place.in_file.transposed) return {};
    std::optional<Int8Codes> codes = stored_->int8_codes(place.in_file.name);
    if (codes) keep_rows(*codes, part_of_rows(place));
    return codes;
  }
  void will_need(const std::string& name) const override { stored_->will_need(place_of(name).in_file.name); }
  void release(const std::string& name) const override { stored_->release(place_of(name).in_file.name); }
  void require_unchanged() const override { stored_->require_unchanged(); }
  std::string identity() const override { return stored_->identity(); }

 private:
  const NamesInFile::Place& place_of(const std::string& name) const {
    const auto found = names_->places.find(name);
    if (found == names_->places.end()) fail("{}: tensor '{}' is missing", stored_->where(name), name);
    return found->second;
  }

  static IndexRange part_of(const NamesInFile::Place& place) {
    const int64_t size = place.shape.size();
    return {size * place.in_file.part, size * (place.in_file.part + 1)};
  }

  static IndexRange part_of_rows(const NamesInFile::Place& place) {
    const int64_t rows = place.shape[0];
    return {rows * place.in_file.part, rows * (place.in_file.part + 1)};
  }

  void read_transposed(const NamesInFile::Place& place, const TensorView& out) const {
    const int64_t rows = place.shape[0], columns = place.shape[1];
    const Tensor stored = Tensor::uninitialized(out.dtype(), {columns, rows});
    stored_->read(place.in_file.name, stored);
    const size_t element = dtype_size(out.dtype());
    const auto at = [&](const TensorView& view, int64_t index) {
      return static_cast<std::byte*>(view.raw()) + static_cast<size_t>(index) * element;
    };
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) std::memcpy(at(out, i * columns + j), at(stored, j * rows + i), element);
  }

  std::shared_ptr<const WeightSource> stored_;
  std::shared_ptr<const NamesInFile> names_;
};

}  // namespace

NamesInFile names_in_file(const WeightSource& stored, const TensorTable& table, const TensorTable& used,
                          const FileRules& rules) {
  return Names(stored, rules).find(table, used);
}

std::vector<std::string> unexpected_weights(const WeightSource& stored, const TensorTable& table,
                                            const FileRules& rules) {
  std::set<std::string> known;
  for (const TensorSpec& spec : table) known.insert({spec.name, spec.name_in(NamingScheme::kTied)});
  std::vector<std::string> unexpected;
  for (const std::string& name : stored.names()) {
    if (is_unexpected(name, known, rules)) unexpected.push_back(name);
  }
  return unexpected;
}

void refuse_unexpected(const WeightSource& stored, const TensorTable& table, const FileRules& rules) {
  const std::vector<std::string> unexpected = unexpected_weights(stored, table, rules);
  if (unexpected.empty()) return;
  fail(
      "{}: holds {} tensors that the config of this folder does not ask for: {}; the config is of another model, or "
      "these are not known here",
      stored.where(unexpected.front()), unexpected.size(), first_of(unexpected));
}

size_t count_in_file(const WeightSource& stored, const TensorTable& table, const TensorTable& used,
                     const FileRules& rules) {
  return Names(stored, rules).count(table, used);
}

std::shared_ptr<const WeightSource> named_source(std::shared_ptr<const WeightSource> stored,
                                                 std::shared_ptr<const NamesInFile> names) {
  return std::make_shared<NamedSource>(std::move(stored), std::move(names));
}

}  // namespace zoetrope::io
