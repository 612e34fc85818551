#include "pipeline/stages/finite.h"

#include <algorithm>

#include "base/error.h"
#include "tensor/finite.h"

namespace zoetrope::pipeline {
namespace {

constexpr int64_t kPiece = int64_t{1} << 20;  // elements that are read at a time

bool is_spoiled(const io::WeightSource& source, const std::string& name, DType dtype) {
  const int64_t elements = source.info(name).shape.size();
  // Others would be made as a whole for every part.
  const int64_t count = source.reads_parts(name) ? std::min(kPiece, elements) : elements;
  const Tensor piece = Tensor::uninitialized(dtype, {count});
  for (int64_t begin = 0; begin < elements; begin += count) {
    const int64_t end = std::min(elements, begin + count);
    const TensorView part = piece.view().slice(0, 0, end - begin);
    source.read_range(name, {begin, end}, part);
    if (first_non_finite(part)) return true;
  }
  source.release(name);
  return false;
}

}  // namespace

void require_finite(const TensorView& values, std::string_view what) {
  if (!values) return;
  const std::optional<NonFinite> found = first_non_finite(values);
  if (!found) return;
  fail("{} holds {} at element {} of {}; {}", what, found->value, found->index, values.shape().to_string(),
       kGoOnAnyway);
}

std::optional<std::string> spoiled_weight(const ComponentWeights& weights, DType dtype, comm::Communicator* ranks) {
  const io::TensorTable& table = weights.tensors();
  const std::shared_ptr<const io::WeightSource> source = weights.source(1);
  const auto name_of = [&](size_t i) { return io::stored_name(*source, table[i]); };
  const size_t count = table.size(), each = ranks == nullptr ? 1 : static_cast<size_t>(ranks->size());
  for (size_t begin = 0; begin < count; begin += each) {
    const size_t mine = begin + (ranks == nullptr ? 0 : static_cast<size_t>(ranks->rank()));
    const bool found = mine < count && is_spoiled(*source, name_of(mine), table[mine].dtype(dtype));
    size_t first = found ? mine : count;
    if (ranks != nullptr) first = static_cast<size_t>(ranks->all_reduce_min(static_cast<double>(first)));
    if (first < count) return fmt::format("weight '{}' in {}", name_of(first), source->where(name_of(first)));
  }
  return std::nullopt;
}

bool FirstSpoiled::spoiled(const TensorView& value) { return first_non_finite(value).has_value(); }

void FirstSpoiled::add(std::string_view name, bool spoiled) {
  if (names_.empty() || names_.back() != name) names_.emplace_back(name);
  if (spoiled && !found_) found_ = names_.size() - 1;
}

FirstSpoiled::Place FirstSpoiled::place(comm::Communicator& ranks) const {
  const auto size = static_cast<size_t>(ranks.size());
  const size_t mine = found_.value_or(names_.size()) * size + static_cast<size_t>(ranks.rank());
  const auto first = static_cast<size_t>(ranks.all_reduce_min(static_cast<double>(mine)));
  ZT_CHECK(first / size < names_.size(), "no rank has found NaN or infinity");
  const auto rank = static_cast<int>(first % size);
  return {names_[first / size], ranks.world_rank(rank)};
}

}  // namespace zoetrope::pipeline
