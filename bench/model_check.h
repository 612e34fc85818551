// Whether a model that is about to be timed computes what it should: a small piece through the very weights and code
// that are timed, compared with the float64 model (models/wan/reference). Not a substitute for the
// golden tests: those compare with recorded runs of the reference, these take any weights, random ones too.
#pragma once

#include <memory>

#include "bench/attention_data.h"
#include "device/stream.h"
#include "io/weights.h"
#include "models/encoders/umt5.h"
#include "models/wan/config.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::bench {

// A few tokens, embedded and through the first and the last block and the head; what a stage starts from is what the
// model itself made, so that errors do not add up. The verdict is of the stage that comes nearest to its tolerance.
Verdict check_transformer(const std::shared_ptr<const wan::TransformerWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, Stream& stream);

// Two latent frames of 1 × 2 cells, decoded.
Verdict check_vae_decoder(const std::shared_ptr<const wan::VaeWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, DType dtype, Stream& stream);

// A few ids: the embedding, the first and the last layer, and the final norm.
Verdict check_text_encoder(encoders::TextEncoder& encoder, const std::shared_ptr<const io::WeightSource>& source,
                           DType dtype, Stream& stream);

// Of a result that is too large to compare: every value is finite and they are not all alike.
std::string degenerate(const TensorView& result);  // empty, or what is wrong with it

}  // namespace zoetrope::bench
