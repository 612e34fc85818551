// What a rank's transformer computed in some steps of a run, kept to be checked afterwards (forward_checks.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zoetrope/communicator.h"
#include "zoetrope/tensor.h"

namespace zoetrope::pipeline {

class ForwardRecord {
 public:
  // Rows of one width, those of later calls behind those of earlier ones.
  struct Value {
    DType dtype = DType::kF32;
    int64_t features = 0, rows = 0;
    std::vector<std::byte> bytes;
  };

  // Appends all rows of `value`, whose last axis is without gaps.
  void add(int64_t step, std::string_view name, const TensorView& value);
  // Null where there is none.
  const Value* find(int64_t step, const std::string& name) const;
  void erase(int64_t step, const std::string& name) { values_.erase({step, name}); }
  void clear(int64_t step);
  size_t bytes() const;

  // Collective: on rank 0 those of all ranks, in their order; empty on the others.
  static std::vector<ForwardRecord> gather(comm::Communicator& world, ForwardRecord&& mine);

 private:
  std::map<std::pair<int64_t, std::string>, Value> values_;
};

// A value's rows as they lie in memory, [rows, features].
inline TensorView view_of(const ForwardRecord::Value& value) {
  return {const_cast<std::byte*>(value.bytes.data()), value.dtype, {value.rows, value.features}};
}

}  // namespace zoetrope::pipeline
