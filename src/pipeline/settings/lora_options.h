// The keys `lora`, `lora_high` and `lora_low`: FILE:STRENGTH,FILE:STRENGTH. What becomes of the files:
// merged_loras.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pipeline/settings/generate_options.h"

namespace zoetrope::pipeline {

// "a.safetensors:0.8,b.safetensors": entries between commas; what follows an entry's last colon is its strength, 1
// where there is no colon. So a path with a colon needs its strength, and one with a comma cannot be named. Throws
// Error that names the entry.
std::vector<LoraFile> parse_loras(std::string_view text);
std::string loras_text(const std::vector<LoraFile>& loras);
// Throws Error for a strength that is out of range.
void check_loras(const char* key, const std::vector<LoraFile>& loras);

}  // namespace zoetrope::pipeline
