// The text encoder (UMT5) in float64, as wan.md section 5.2 defines it: one layer from top to bottom.
#pragma once

#include <string>

#include "models/encoders/config.h"
#include "models/reference/rows.h"

namespace zoetrope::reference {

class TextEncoder {
 public:
  TextEncoder(const encoders::TextEncoderConfig& config, DType dtype, const Parameters& parameters)
      : config_(config), rounding_(rounding_of(dtype)), parameters_(parameters) {}

  Rows layer(int64_t index, Rows x) const;
  Rows norm(const std::string& name, const Rows& x) const {
    return rms_norm(x, parameters_.read(name, rounding_), config_.layer_norm_epsilon);
  }

 private:
  Rows linear(const std::string& name, const Rows& x) const { return parameters_.linear(name, x, rounding_); }
  int64_t bucket(int64_t distance) const;

  const encoders::TextEncoderConfig& config_;
  Rounding rounding_;
  const Parameters& parameters_;
};

}  // namespace zoetrope::reference
