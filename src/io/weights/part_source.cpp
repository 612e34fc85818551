#include "io/weights/part_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace zoetrope::io {
namespace {

class PartSource final : public WeightSource {
 public:
  PartSource(std::shared_ptr<const WeightSource> whole, TensorTable table, int parts, int part)
      : whole_(std::move(whole)), table_(std::move(table)), index_(table_), parts_(parts), part_(part) {}

  bool contains(const std::string& name) const override { return whole_->contains(name); }
  std::vector<std::string> names() const override { return whole_->names(); }
  TensorInfo info(const std::string& name) const override {
    TensorInfo info = whole_->info(name);
    const std::optional<Cut> cut = cut_of(name, info.shape);
    if (!cut) return info;
    const Shape shape = cut->shape(info.shape);
    info.bytes = info.bytes / static_cast<uint64_t>(std::max<int64_t>(1, info.shape.size())) *
                 static_cast<uint64_t>(shape.size());
    info.shape = shape;
    return info;
  }
  std::string where(const std::string& name) const override { return whole_->where(name); }
  // Rows lie side by side; columns do not.
  TensorView mapped(const std::string& name) const override {
    const TensorView whole = whole_->mapped(name);
    if (!whole) return whole;
    const std::optional<Cut> cut = cut_of(name, whole.shape());
    if (!cut) return whole;
    return cut->axis == 0 ? whole.slice(0, cut->range.begin, cut->range.end) : TensorView();
  }
  void read(const std::string& name, const TensorView& out) const override {
    const Shape whole = whole_->info(name).shape;
    const std::optional<Cut> cut = cut_of(name, whole);
    if (!cut) return whole_->read(name, out);
    read_range(name, {0, cut->shape(whole).size()}, out);
  }
  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override {
    const Shape whole = whole_->info(name).shape;
    const std::optional<Cut> cut = cut_of(name, whole);
    if (!cut) return whole_->read_range(name, range, out);
    ZT_CHECK(out.size() == range.size() && range.end <= cut->shape(whole).size());
    const TensorView to = out.reshape({out.size()});
    if (cut->axis == 0) {
      const int64_t first = cut->range.begin * (whole.size() / whole[0]);
      return whole_->read_range(name, {first + range.begin, first + range.end}, to);
    }
    read_columns(name, whole, *cut, range, to);
  }
  bool reads_parts(const std::string& name) const override { return whole_->reads_parts(name); }
  std::optional<Int8Codes> int8_codes(const std::string& name) const override {
    std::optional<Int8Codes> codes = whole_->int8_codes(name);
    const std::optional<Cut> cut = codes ? cut_of(name, whole_->info(name).shape) : std::nullopt;
    if (!cut) return codes;
    if (cut->axis == 0) keep_rows(*codes, cut->range);
    else if (codes->rotation > 0 &&
             (cut->range.begin % codes->rotation != 0 || cut->range.size() % codes->rotation != 0))
      return {};  // a rotated group would be cut
    return codes;
  }
  void will_need(const std::string& name) const override { whole_->will_need(name); }
  void release(const std::string& name) const override { whole_->release(name); }
  void require_unchanged() const override { whole_->require_unchanged(); }
  std::string identity() const override {
    const std::string whole = whole_->identity();
    return whole.empty() ? whole : fmt::format("{} part {} of {}", whole, part_, parts_);
  }

 private:
  struct Cut {
    int axis;  // 0 or 1
    IndexRange range;
    Shape shape(Shape whole) const {
      whole[axis] = range.size();
      return whole;
    }
  };

  // Nothing for a tensor that is not divided. One of another shape than the table's is found by who asks for it.
  std::optional<Cut> cut_of(const std::string& name, const Shape& stored) const {
    const TensorSpec* spec = index_.find(name);
    if (spec == nullptr || !spec->shard_axis || !(spec->shape == stored)) return std::nullopt;
    ZT_CHECK(spec->shard_axis->axis == 0 || (spec->shard_axis->axis == 1 && stored.rank() == 2), "'{}'", name);
    return Cut{spec->shard_axis->axis, spec->shard(parts_, part_)};
  }

  // Row by row, or from all of it where reading a part would be reading all.
  void read_columns(const std::string& name, const Shape& whole, const Cut& cut, IndexRange range,
                    const TensorView& out) const {
    if (range.empty()) return;
    const int64_t columns = cut.range.size();
    const auto size = static_cast<int64_t>(dtype_size(out.dtype()));
    Tensor all;
    if (!whole_->reads_parts(name)) {
      all = Tensor::uninitialized(out.dtype(), whole);
      whole_->read(name, all);
    }
    for (int64_t row = range.begin / columns; row * columns < range.end; ++row) {
      const int64_t begin = std::max(range.begin, row * columns), end = std::min(range.end, (row + 1) * columns);
      const TensorView to = out.slice(0, begin - range.begin, end - range.begin);
      const int64_t from = row * whole[1] + cut.range.begin + (begin - row * columns);
      if (all) std::memcpy(to.raw(), all.data<std::byte>() + from * size, to.bytes());
      else whole_->read_range(name, {from, from + to.size()}, to);
    }
  }

  std::shared_ptr<const WeightSource> whole_;
  TensorTable table_;
  TensorIndex index_;  // of table_
  int parts_, part_;
};

}  // namespace

std::shared_ptr<const WeightSource> part_source(std::shared_ptr<const WeightSource> whole, TensorTable table, int parts,
                                                int part) {
  ZT_CHECK(0 <= part && part < parts, "part {} of {}", part, parts);
  return std::make_shared<PartSource>(std::move(whole), std::move(table), parts, part);
}

}  // namespace zoetrope::io
