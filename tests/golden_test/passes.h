// One pass of a component, for cases that record its result.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "zoetrope/tensor.h"

#include "device/stream.h"
#include "io/weights/tensor_file.h"
#include "io/weights/weights.h"
#include "models/encoders/config.h"
#include "models/wan/config.h"
#include "models/wan/vae/vae.h"
#include "tensor/probe.h"

namespace zoetrope::golden {

using Values = std::map<std::string, Tensor, std::less<>>;

// One forward pass on one rank of the inputs that `data` holds as "in.*"; what the probe saw, and "output".
Values forward(const wan::TransformerConfig& config, std::shared_ptr<const io::Weights> source, DType dtype,
               const io::TensorFile& data);

// The whole clip as [1, 3, F, H, W].
Tensor decode(Stream& stream, wan::VaeDecoder& decoder, const TensorView& z, const Probe& probe = {});

// Token ids and mask, [n, rows] each → [n, rows, d_model], with zeros in the rows of padding.
Tensor encode_text(std::shared_ptr<const io::WeightSource> source, const encoders::TextEncoderConfig& config,
                   DType dtype, const TensorView& ids, const TensorView& mask, const Probe& probe = {});

// Rows of padding mean nothing: they are set to zero.
Tensor real_rows(const TensorView& values, const TensorView& mask);

}  // namespace zoetrope::golden
