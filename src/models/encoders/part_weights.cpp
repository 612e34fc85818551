#include "models/encoders/part_weights.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "base/index_range.h"

namespace zoetrope::encoders {

PartWeights::PartWeights(std::shared_ptr<const io::WeightSource> source, io::TensorTable table, DType dtype,
                         Stream& stream, int parts, int part)
    : source_(std::move(source)),
      table_(std::move(table)),
      index_(table_),
      dtype_(dtype),
      stream_(stream),
      parts_(parts),
      part_(part) {}

bool PartWeights::needs_buffer(const std::string& stored_name) const {
  const TensorView mapped = source_->mapped(stored_name);
  return !mapped || (mapped.dtype() != DType::kF32 && mapped.dtype() != DType::kBF16);
}

bool PartWeights::needs_buffer() const {
  using enum io::TensorRole;
  return std::any_of(table_.begin(), table_.end(), [&](const io::TensorSpec& spec) {
    return (spec.role == kMatrix || spec.role == kConvolution) && needs_buffer(io::stored_name(*source_, spec));
  });
}

void PartWeights::set_buffer(const TensorView& buffer) {
  buffer_ = buffer;
  used_ = 0;
}

TensorView PartWeights::matrix(std::string_view name_in_table) {
  const io::TensorSpec& spec = index_[name_in_table];
  const std::string& name = io::stored_name(*source_, spec);
  const Shape whole{spec.shape[0], spec.shape.size() / spec.shape[0]};
  IndexRange rows{0, whole[0]}, columns{0, whole[1]};
  if (spec.shard_axis) (spec.shard_axis->axis == 0 ? rows : columns) = spec.shard(parts_, part_);
  if (!needs_buffer(name)) {
    return source_->mapped(name).reshape(whole).slice(0, rows.begin, rows.end).slice(1, columns.begin, columns.end);
  }
  const Shape part{rows.size(), columns.size()};
  ZT_CHECK(dtype_ == buffer_.dtype() && used_ + part.size() <= buffer_.size());
  const TensorView out(buffer_.data<std::byte>() + used_ * static_cast<int64_t>(dtype_size(dtype_)), dtype_, part);
  used_ += part.size();
  if (part == whole) {
    source_->read(name, out);
    return out;
  }
  // With all columns, the rows of a thread are contiguous.
  stream_.team().parallel_for(rows.size(), 1, [&](IndexRange mine, int) {
    if (columns.size() == whole[1]) {
      const IndexRange elements{(rows.begin + mine.begin) * whole[1], (rows.begin + mine.end) * whole[1]};
      return source_->read_range(name, elements, out.slice(0, mine.begin, mine.end));
    }
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t row = (rows.begin + i) * whole[1];
      source_->read_range(name, {row + columns.begin, row + columns.end}, out.select(0, i));
    }
  });
  return out;
}

TensorView PartWeights::small(std::string_view name, DType dtype) {
  const std::string& stored = stored_name(name);
  const TensorView mapped = source_->mapped(stored);
  if (mapped && mapped.dtype() == dtype) return mapped;
  const TensorView out = stream_.scratch().tensor(dtype, index_[name].shape);
  source_->read(stored, out);
  return out;
}

void PartWeights::gather_rows(std::string_view name, std::span<const int32_t> ids, const TensorView& out) {
  // For a row that is read, the system may map two megabytes of the file.
  constexpr size_t kMappedAtOnce = 32;
  const std::string& stored = stored_name(name);
  const int64_t width = out.extent(1);
  for (size_t i = 0; i < ids.size(); ++i) {
    const IndexRange row{ids[i] * width, (ids[i] + int64_t{1}) * width};
    source_->read_range(stored, row, out.select(0, static_cast<int64_t>(i)));
    if ((i + 1) % kMappedAtOnce == 0) source_->release(stored);
  }
  source_->release(stored);
}

void PartWeights::prefetch(const std::string& beginning) const {
  for (const io::TensorSpec& spec : table_)
    if (spec.name.starts_with(beginning)) source_->will_need(io::stored_name(*source_, spec));
}

void PartWeights::release(const std::string& beginning) const {
  for (const io::TensorSpec& spec : table_)
    if (spec.name.starts_with(beginning)) source_->release(io::stored_name(*source_, spec));
}

}  // namespace zoetrope::encoders
