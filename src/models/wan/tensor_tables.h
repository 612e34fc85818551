// The tensors of transformer and VAE, from their configs alone (wan.md sections 2–4); see io/weights/tensor_table.h.
#pragma once

#include "io/weights/named_source.h"
#include "io/weights/tensor_table.h"
#include "models/wan/config.h"

namespace zoetrope::wan {

// Of every class. Ranks that share the layers of a block (io::part_of()) divide heads, and the feed-forward in units of
// hidden_unit() rows.
io::TensorTable transformer_tensors(const TransformerConfig& config);
// Of the parameters of `whole`, those of a part of its layers.
double share_of(const TransformerConfig& part, const TransformerConfig& whole);
int64_t hidden_unit(int64_t ffn_dim);

// Both generations: vae_layout.h. Throw Error for a VAE that cannot be laid out.
io::TensorTable vae_tensors(const VaeConfig& config);
io::TensorTable vae_encoder_tensors(const VaeConfig& config);
io::TensorTable vae_decoder_tensors(const VaeConfig& config);

// What other files of them may hold besides: norms that old conversions left behind.
io::FileRules transformer_files();
io::FileRules vae_files();

}  // namespace zoetrope::wan
