// Reads configs from JSON text and expects their refusals. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace zoetrope::refusals {

template <typename Config>
Config parse(const nlohmann::json& document) {
  return Config::from_json(JsonObject::parse(document.dump(), "folder/config.json"));
}

// The message of the Error that parsing throws; empty when it throws none.
template <typename Config>
std::string refusal(const nlohmann::json& document) {
  try {
    parse<Config>(document);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

template <typename Config>
std::string refusal_with(nlohmann::json document, const std::string& key, const nlohmann::json& value) {
  document[key] = value;
  return refusal<Config>(document);
}

// Each refusal names the file and the key.
template <typename Config>
void expect_refused(const nlohmann::json& document, const std::string& key, const nlohmann::json& value) {
  const std::string message = refusal_with<Config>(document, key, value);
  EXPECT_NE(message.find("folder/config.json"), std::string::npos) << key << " = " << value << ": " << message;
  EXPECT_NE(message.find(key), std::string::npos) << key << " = " << value << ": " << message;
}

template <typename Config>
void expect_required(nlohmann::json document, const std::string& key) {
  document.erase(key);
  const std::string message = refusal<Config>(document);
  EXPECT_NE(message.find("folder/config.json"), std::string::npos) << key << ": " << message;
  EXPECT_NE(message.find(key), std::string::npos) << key << ": " << message;
}

template <typename Config>
void expect_quantized_refused(const nlohmann::json& good) {
  const nlohmann::json quantized = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  expect_refused<Config>(good, "quantization_config", quantized);
  EXPECT_NE(refusal_with<Config>(good, "quantization_config", quantized).find("bitsandbytes"), std::string::npos);
  expect_refused<Config>(good, "quantization_config", "fp8");
  EXPECT_EQ(refusal_with<Config>(good, "quantization_config", nullptr), "");
}

}  // namespace zoetrope::refusals
