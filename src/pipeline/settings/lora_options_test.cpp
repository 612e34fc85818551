#include "pipeline/settings/lora_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_folder.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

void expect_entries(const std::string& text, const std::vector<std::pair<std::string, double>>& expected) {
  const std::vector<LoraFile> found = parse_loras(text);
  ASSERT_EQ(found.size(), expected.size()) << text;
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].file, expected[i].first) << text;
    EXPECT_EQ(found[i].strength, expected[i].second) << text;
  }
}

TEST(LoraOptions, EntriesAreFilesWithStrengths) {
  expect_entries("", {});
  expect_entries("a.safetensors", {{"a.safetensors", 1}});
  expect_entries("a.safetensors:0.8,b/c.safetensors:1.0", {{"a.safetensors", 0.8}, {"b/c.safetensors", 1}});
  expect_entries(" a.safetensors : -0.5 , b.safetensors ", {{"a.safetensors", -0.5}, {"b.safetensors", 1}});
  expect_entries("a.safetensors:0", {{"a.safetensors", 0}});
  expect_entries("my:lora.safetensors:1e-1", {{"my:lora.safetensors", 0.1}});
}

TEST(LoraOptions, WhatIsNoEntryIsRefusedByName) {
  const auto refusal = [](const std::string& text) {
    return error_of([&] { check_loras("lora_high", parse_loras(text)); });
  };
  EXPECT_THAT(refusal("a.safetensors:strong"), AllOf(HasSubstr("'a.safetensors:strong'"), HasSubstr("not a number")));
  for (const char* text : {"a:", "a:nan", "a:inf", "a:0.8x", "my:lora.safetensors", "a:0,8", "a:1e999"}) {
    EXPECT_THAT(refusal(text), HasSubstr(text == std::string("a:0,8") ? "no error" : "not a number")) << text;
  }
  EXPECT_THAT(refusal("a:2000"), AllOf(HasSubstr("lora_high"), HasSubstr("between -1000 and 1000")));
  EXPECT_THAT(refusal("a:1,,b:1"), HasSubstr("empty"));
  EXPECT_THAT(refusal("a:1,"), HasSubstr("empty"));
  EXPECT_THAT(refusal(":0.8"), HasSubstr("names no file"));
}

}  // namespace
}  // namespace zoetrope::pipeline
