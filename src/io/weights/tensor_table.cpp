#include "io/weights/tensor_table.h"

#include <filesystem>

#include "base/error.h"

namespace zoetrope::io {

IndexRange TensorSpec::shard(int parts, int part) const {
  ZT_CHECK(shard_axis, "'{}' is not divided", name);
  const int64_t unit = shard_axis->unit;
  const IndexRange units = split_range(shape[shard_axis->axis] / unit, parts, part);
  return {units.begin * unit, units.end * unit};
}

TensorTable part_of(const TensorTable& table, int parts, int part) {
  TensorTable of = table;
  for (TensorSpec& spec : of)
    if (spec.shard_axis) spec.shape[spec.shard_axis->axis] = spec.shard(parts, part).size();
  return of;
}

TensorIndex::TensorIndex(const TensorTable& table) {
  for (const TensorSpec& spec : table) specs_.emplace(spec.name, &spec);
}

const TensorSpec* TensorIndex::find(std::string_view name) const {
  const auto found = specs_.find(name);
  return found == specs_.end() ? nullptr : found->second;
}

const TensorSpec& TensorIndex::operator[](std::string_view name) const {
  const TensorSpec* spec = find(name);
  ZT_CHECK(spec != nullptr, "the table has no tensor '{}'", name);
  return *spec;
}

TensorTotals totals(const TensorTable& table) {
  TensorTotals sum;
  for (const TensorSpec& spec : table) sum.parameters += spec.shape.size();
  sum.tensors = static_cast<int64_t>(table.size());
  return sum;
}

int64_t resident_bytes(const TensorTable& table, DType dtype) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : table) bytes += spec.shape.size() * static_cast<int64_t>(dtype_size(spec.dtype(dtype)));
  return bytes;
}

TensorDefects tensor_defects(const WeightSource& source, const TensorTable& table) {
  TensorDefects defects;
  for (const TensorSpec& spec : table) {
    const std::string& name = stored_name(source, spec);
    if (!source.contains(name)) {
      defects.missing.push_back(
          fmt::format("'{}' {} is missing; the config of this folder asks for it", name, spec.shape.to_string()));
      continue;
    }
    const TensorInfo info = source.info(name);
    const std::string where =
        fmt::format("'{}' of {}", name, std::filesystem::path(source.where(name)).filename().string());
    if (!(info.shape == spec.shape)) {
      defects.misshapen.push_back(fmt::format("{} has shape {}, but the config of this folder asks for {}", where,
                                              info.shape.to_string(), spec.shape.to_string()));
    } else if (!is_readable(info)) {
      defects.unreadable.push_back(
          fmt::format("{} is stored as {}, but F32, BF16, F16 or F64 is needed", where, info.dtype_name));
    }
  }
  return defects;
}

void require_tensors(const WeightSource& source, const TensorTable& table) {
  const TensorDefects defects = tensor_defects(source, table);
  for (const auto* sentences : {&defects.missing, &defects.misshapen, &defects.unreadable})
    if (!sentences->empty()) fail("{}: tensor {}", source.where({}), sentences->front());
}

}  // namespace zoetrope::io
