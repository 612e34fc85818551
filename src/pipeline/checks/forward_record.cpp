#include "pipeline/checks/forward_record.h"

#include <cstring>

#include "base/error.h"

namespace zoetrope::pipeline {
namespace {

// Calls body(row) for the first element of every row of the last axis.
template <typename Body>
void for_each_row(const TensorView& value, Body&& body) {
  if (value.rank() == 1) return body(value.data<std::byte>());
  for (int64_t i = 0; i < value.extent(0); ++i) for_each_row(value.select(0, i), body);
}

// What is said of a value before its bytes are sent.
struct Head {
  int64_t step, dtype, features, rows, name_bytes;
};

}  // namespace

void ForwardRecord::add(int64_t step, std::string_view name, const TensorView& value) {
  const int64_t features = value.extent(-1);
  ZT_CHECK(value.stride(value.rank() - 1) == 1, "{} has gaps", name);
  Value& kept = values_[{step, std::string(name)}];
  ZT_CHECK(kept.rows == 0 || (kept.features == features && kept.dtype == value.dtype()), "{}", name);
  kept.dtype = value.dtype();
  kept.features = features;
  const size_t row_bytes = static_cast<size_t>(features) * dtype_size(value.dtype());
  if (value.size() == 0) return;
  size_t at = kept.bytes.size();
  kept.bytes.resize(at + static_cast<size_t>(value.size()) * dtype_size(value.dtype()));
  for_each_row(value, [&](const std::byte* row) {
    std::memcpy(kept.bytes.data() + at, row, row_bytes);
    at += row_bytes;
  });
  kept.rows = static_cast<int64_t>(at / row_bytes);
}

const ForwardRecord::Value* ForwardRecord::find(int64_t step, const std::string& name) const {
  const auto found = values_.find({step, name});
  return found == values_.end() ? nullptr : &found->second;
}

void ForwardRecord::clear(int64_t step) {
  std::erase_if(values_, [step](const auto& entry) { return entry.first.first == step; });
}

size_t ForwardRecord::bytes() const {
  size_t sum = 0;
  for (const auto& [key, value] : values_) sum += value.bytes.size();
  return sum;
}

std::vector<ForwardRecord> ForwardRecord::gather(comm::Communicator& world, ForwardRecord&& mine) {
  constexpr const char* kOperation = "gather of what is checked";
  std::vector<Head> heads;
  std::string names;
  for (const auto& [key, value] : mine.values_) {
    heads.push_back({key.first, static_cast<int64_t>(value.dtype), value.features, value.rows,
                     static_cast<int64_t>(key.second.size())});
    names += key.second;
  }
  const int64_t sizes[2] = {std::ssize(heads), std::ssize(names)};
  std::vector<int64_t> all_sizes(static_cast<size_t>(world.size()) * 2);
  world.all_gather(sizes, all_sizes.data(), sizeof sizes, kOperation);
  if (world.rank() != 0) {
    std::vector<comm::Segment> send{{0, heads.data(), heads.size() * sizeof(Head)}, {0, names.data(), names.size()}};
    for (auto& [key, value] : mine.values_)
      if (!value.bytes.empty()) send.push_back({0, value.bytes.data(), value.bytes.size()});
    world.exchange(send, {}, kOperation).wait();
    return {};
  }
  std::vector<ForwardRecord> all(static_cast<size_t>(world.size()));
  all[0] = std::move(mine);
  for (int rank = 1; rank < world.size(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    heads.resize(static_cast<size_t>(all_sizes[2 * r]));
    names.resize(static_cast<size_t>(all_sizes[2 * r + 1]));
    std::vector<comm::Segment> receive{{rank, heads.data(), heads.size() * sizeof(Head)},
                                       {rank, names.data(), names.size()}};
    world.exchange({}, receive, kOperation).wait();
    receive.clear();
    size_t name = 0;
    for (const Head& head : heads) {
      Value& value = all[r].values_[{head.step, names.substr(name, static_cast<size_t>(head.name_bytes))}];
      name += static_cast<size_t>(head.name_bytes);
      value.dtype = static_cast<DType>(head.dtype);
      value.features = head.features;
      value.rows = head.rows;
      value.bytes.resize(static_cast<size_t>(head.rows * head.features) * dtype_size(value.dtype));
      if (!value.bytes.empty()) receive.push_back({rank, value.bytes.data(), value.bytes.size()});
    }
    world.exchange({}, receive, kOperation).wait();
  }
  return all;
}

}  // namespace zoetrope::pipeline
