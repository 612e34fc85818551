// A forward of the transformer in stages that each begin from the values which the engine itself had: so no error adds
// up, and the first stage that is off is where it comes from. For any weights, inputs and number of ranks: what is
// known of the forward is what a probe saw (models/wan/transformer/transformer.h).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "zoetrope/index_range.h"

#include "models/wan/reference/transformer.h"

namespace zoetrope::wan::reference {

struct Stage {
  enum class Kind : uint8_t {
    kText,
    kImage,
    kPatches,
    kPose,
    kTime,
    kTimeProjection,
    kControlPatches,
    kSelfAttention,
    kCrossAttention,
    kFeedForward,  // the result of a block
    kFace,
    kHint,
    kHead,
  };
  Kind kind{};
  int64_t index = 0;     // of the block, the adapter or the hint
  bool control = false;  // a block of VACE's control stream

  std::string tensor() const;  // as the probe names it: "block.3.self_attention"
  bool by_token() const;       // has a row for each token, or for some of them
};

// In the order in which a forward makes them, the prompt's first.
std::vector<Stage> stages_of(const TransformerConfig& config);

// The inputs of one sample.
struct StageInputs {
  TensorView latents;  // [C_in, F, H, W] F32, with the conditions' channels
  Grid grid{};
  std::vector<double> timesteps;
  std::vector<int32_t> timestep_of;  // of each token; empty: all have the first
  Rows text, image;                  // the valid rows; the second without rows where there is no image
  TensorView control;                // VACE: [C, Fc, H, W]
  std::span<const float> control_scales;
  TensorView pose;  // Animate: [C, F − 1, H, W]
  Rows face;        // Animate: tokens from the second frame on
};

// The tokens that have a row of a stage: of the pose those behind the first frame, of the control patches those of its
// frames.
IndexRange tokens_of(const Stage& stage, const TransformerConfig& config, const StageInputs& inputs);

class ForwardStages {
 public:
  // What the engine had of a tensor, whole: [features, rows].
  using Value = std::function<const Rows&(const std::string& tensor)>;
  // All must outlive it.
  ForwardStages(const TransformerConfig& config, DType dtype, const Parameters& parameters, const StageInputs& inputs,
                Value value)
      : config_(config),
        dtype_(dtype),
        reference_(config, dtype, parameters),
        inputs_(inputs),
        value_(std::move(value)) {}

  // What a stage gives for the engine's values before it: all rows, or where it has one for each token those of the
  // tokens `of`.
  Rows expected(const Stage& stage, const std::vector<int64_t>& of) const;
  // The stream that a stage adds to, for the same rows; without rows where it adds to none. Roundings of the stream are
  // relative to it too.
  Rows stream_before(const Stage& stage, const std::vector<int64_t>& of) const;

 private:
  Rows stream_into(const Stage& block) const;
  Rows padded_control() const;
  Rows time_of(const Rows& values, const std::vector<int64_t>& of) const;
  Transformer::Context context() const;
  std::string parameters_of(const Stage& block) const;

  const TransformerConfig& config_;
  const DType dtype_;
  const Transformer reference_;
  const StageInputs& inputs_;
  const Value value_;
};

// The largest relative L2 error of a stage whose longest sum has `terms` terms.
double stage_bound(int64_t terms, DType dtype);
int64_t longest_sum(const TransformerConfig& config);
double stage_bound(const Stage& stage, const TransformerConfig& config, DType dtype);
double int8_rounding(const Stage& stage, const TransformerConfig& config);  // of that, what blocks in int8 add
double int8_attention_rounding(const Stage& stage);                         // what attention_dtype=int8 may add to that

// How far a stage's result is from what is expected, over all of its values, and over the rows, features and values
// apart: what is wrong in one of them is small among all.
struct StageError {
  double relative_l2 = 0;  // of what the stage adds where it adds to a stream
  double max_abs = 0;
  double of_bound = 0;  // the largest of the errors as a part of its bound; infinite where a value is not finite
};
// `before`: the stream that the stage adds to, rounded to `dtype` twice on the way, or without rows. `bound`: of the
// relative L2 error.
StageError stage_error(const Rows& result, const Rows& expected, const Rows& before, double bound, DType dtype);

}  // namespace zoetrope::wan::reference
