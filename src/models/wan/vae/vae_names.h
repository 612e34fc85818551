// The original names of the VAE's tensors.
#pragma once

#include <string>

#include "models/wan/config.h"

namespace zoetrope::wan {

// Of a tensor by its name in the hub's folders: "decoder.mid_block.resnets.0.conv1.weight" is
// "decoder.middle.0.residual.2.weight". Both generations; docs/spec/weights.md, section 2.3.
std::string original_vae_name(const VaeConfig& config, const std::string& name);

}  // namespace zoetrope::wan
