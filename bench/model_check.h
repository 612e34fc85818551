// Checks that a model that is about to be timed computes correctly: a small input through the same weights and code,
// compared with the float64 model (models/wan/reference). The golden tests compare with recorded runs of the reference;
// these checks take any weights, random ones too.
#pragma once

#include <memory>

#include "zoetrope/attention.h"

#include "bench/attention_data.h"
#include "device/stream.h"
#include "io/weights/weights.h"
#include "models/encoders/umt5.h"
#include "models/wan/config.h"
#include "models/wan/transformer/weights.h"
#include "models/wan/vae/vae_weights.h"

namespace zoetrope::bench {

// A few tokens through the embedding, the first and the last block, and the head. Each stage starts from the values
// that the model itself computed, so that errors do not add up. The verdict is of the stage with the largest error.
Verdict check_transformer(const std::shared_ptr<const wan::TransformerWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, Stream& stream,
                          const attention::Strategy& strategy = {});

// Decodes two latent frames of 1 × 2 cells.
Verdict check_vae_decoder(const std::shared_ptr<const wan::VaeWeights>& weights,
                          const std::shared_ptr<const io::WeightSource>& source, DType dtype, Stream& stream);

// A few ids: the embedding, the first and the last layer, and the final norm.
Verdict check_text_encoder(encoders::TextEncoder& encoder, const std::shared_ptr<const io::WeightSource>& source,
                           DType dtype, Stream& stream);

// For a result that is too large to compare: what is wrong if a value is not finite or all are equal; else empty.
std::string degenerate(const TensorView& result);

}  // namespace zoetrope::bench
