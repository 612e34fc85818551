#include "models/wan/part_weights.h"

#include <cstddef>
#include <utility>

#include "base/error.h"

namespace zoetrope::wan {

void require_tensors(const io::WeightSource& source, const TensorList& list) {
  for (const TensorSpec& spec : list) {
    const std::string name = stored_name(source, spec.name);
    const io::TensorInfo info = source.info(name);
    if (info.shape != spec.shape) {
      fail("{}: tensor '{}' has shape {}, but the config needs {}", source.where(name), name, info.shape.to_string(),
           spec.shape.to_string());
    }
    const bool number = info.dtype == DType::kF32 || info.dtype == DType::kBF16 || info.dtype == DType::kF16 ||
                        info.dtype == DType::kF64;
    if (!number) {
      fail("{}: tensor '{}' is stored as {}, but F32, BF16, F16 or F64 is needed", source.where(name), name,
           info.dtype_name);
    }
  }
}

size_t packing_scratch_bytes(int64_t heads, int64_t keys, int64_t head_dim, int threads) {
  // The largest tile of tile_size.h: 256 rows and twice 512 keys of weights on matrix units are 0.56 MB, their sums,
  // queries and results at a head size of 128 another 0.23 MB.
  constexpr int64_t kPanel = 64, kTile = int64_t{1} << 20, kFloat = 4;
  const int64_t packed = round_up(keys, kPanel) + kPanel;
  return static_cast<size_t>(heads * 2 * packed * head_dim * kFloat + threads * kTile);
}

PartWeights::PartWeights(std::shared_ptr<const io::WeightSource> source, DType dtype, Stream& stream)
    : source_(std::move(source)), dtype_(dtype), stream_(stream) {}

bool PartWeights::needs_buffer(const std::string& name) const {
  const TensorView mapped = source_->mapped(name);
  return !mapped || (mapped.dtype() != DType::kF32 && mapped.dtype() != DType::kBF16);
}

void PartWeights::set_buffer(const TensorView& buffer) {
  buffer_ = buffer;
  used_ = 0;
}

TensorView PartWeights::matrix(const std::string& name, IndexRange rows, IndexRange columns) {
  const Shape stored = source_->info(name).shape, part{rows.size(), columns.size()};
  const Shape whole{stored[0], stored.size() / stored[0]};
  if (!needs_buffer(name)) {
    return source_->mapped(name).reshape(whole).slice(0, rows.begin, rows.end).slice(1, columns.begin, columns.end);
  }
  ZT_CHECK(dtype_ == buffer_.dtype() && used_ + part.size() <= buffer_.size());
  const TensorView out(buffer_.data<std::byte>() + used_ * static_cast<int64_t>(dtype_size(dtype_)), dtype_, part);
  used_ += part.size();
  if (part == whole) {
    source_->read(name, out);
    return out;
  }
  // Rows lie together where all columns are wanted, so a thread's are one piece then.
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

TensorView PartWeights::small(const std::string& name, DType dtype) {
  const TensorView mapped = source_->mapped(name);
  if (mapped && mapped.dtype() == dtype) return mapped;
  const TensorView out = stream_.scratch().tensor(dtype, source_->info(name).shape);
  source_->read(name, out);
  return out;
}

void PartWeights::gather_rows(const std::string& name, std::span<const int32_t> ids, const TensorView& out) {
  const int64_t width = out.extent(1);
  for (size_t i = 0; i < ids.size(); ++i) {
    source_->read_range(name, {ids[i] * width, (ids[i] + int64_t{1}) * width}, out.select(0, static_cast<int64_t>(i)));
  }
}

}  // namespace zoetrope::wan
