// The prompts that were recorded with their ids, for tests of tokenizers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/project_folders.h"
#include "text/tokenizer.h"

namespace zoetrope::text {

inline const std::filesystem::path kGolden = kGoldenFolder;

inline nlohmann::json read_json(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return nlohmann::json::parse(stream);
}

// Of the prompt as given and as cleaned.
inline void expect_recorded_ids(const Tokenizer& tokenizer, const nlohmann::json& recorded) {
  for (const auto& [text, ids] : {std::pair("prompt", "ids_raw"), std::pair("clean", "ids_clean")}) {
    EXPECT_EQ(tokenizer.encode(recorded[text].get<std::string>()), recorded[ids].get<std::vector<int32_t>>())
        << recorded[text];
  }
}

}  // namespace zoetrope::text
