// The measurements of `zoetrope attention` as lines for people and as JSON for programs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "cli/attention_run.h"

namespace zoetrope::cli {

std::string attention_text(const AttentionMeasurement& measured, const bench::AttentionData& data,
                           const std::optional<bench::Verdict>& errors);

// Whole or not at all. attention_json_help() says what the fields are.
void write_attention_json(const std::filesystem::path& path, const AttentionMeasurement& measured,
                          const bench::AttentionData& data, const std::optional<bench::Verdict>& errors);
std::string attention_json_help();

}  // namespace zoetrope::cli
