// Parameters by formula instead of by file, for models too large to store or download: the same values everywhere,
// computed when they are read. Which values suit a model is decided in io/weights/random_weights.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/index_range.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

// Element i of a tensor is
//   offset + amplitude·(2u − 1) in float64, rounded to float32,  u = (mix(key + (i + 1)·0x9E3779B97F4A7C15) >> 40) /
//   2^24, key = FNV-1a-64(name) xor mix(seed), mix the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
struct Formula {
  Shape shape;
  double offset = 0;
  double amplitude = 0;
};

class FormulaSource final : public WeightSource {
 public:
  // `where` says in errors where the formulas are from.
  FormulaSource(std::string where, uint64_t seed, std::map<std::string, Formula> formulas, int threads = 1);

  bool contains(const std::string& name) const override { return formulas_.count(name) != 0; }
  std::vector<std::string> names() const override;
  TensorInfo info(const std::string& name) const override;  // F32
  std::string where(const std::string&) const override { return where_; }
  TensorView mapped(const std::string&) const override { return {}; }
  void read(const std::string& name, const TensorView& out) const override;  // F32, BF16

  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override;  // F32, BF16
  bool reads_parts(const std::string&) const override { return true; }
  std::string identity() const override;

 private:
  const Formula& formula(const std::string& name) const;

  std::string where_;
  uint64_t seed_;
  std::map<std::string, Formula> formulas_;
  int threads_;
};

}  // namespace zoetrope::io
