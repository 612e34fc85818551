#include "models/lora/peft_metadata.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/test_folder.h"

namespace zoetrope::lora {
namespace {

using testing::AllOf;
using testing::HasSubstr;

double scale_after(const std::string& start) {
  const std::string text = fmt::format(R"({{"r": 2, "lora_alpha": 6, "init_lora_weights": {}}})", start);
  return PeftMetadata("x.safetensors", {{"lora_adapter_metadata", text}}).scale({"a", "b"}, 2);
}

TEST(PeftMetadata, TrainingThatChangedTheModelIsRefused) {
  for (const char* harmless : {"true", "false", "null", R"("gaussian")", R"("eva")"})
    EXPECT_EQ(scale_after(harmless), 3) << harmless;
  for (const char* changed : {"pissa", "pissa_niter_4", "olora", "OLoRA", "corda", "loftq", "lora_ga"}) {
    EXPECT_THAT(error_of([&] { scale_after(fmt::format("\"{}\"", changed)); }),
                AllOf(HasSubstr("x.safetensors"), HasSubstr("init_lora_weights is")));
  }
  const std::string prefixed = R"({"transformer.r": 2, "transformer.init_lora_weights": "pissa"})";
  EXPECT_THAT(error_of([&] {
                PeftMetadata("x.safetensors", {{"lora_adapter_metadata", prefixed}});
              }),
              HasSubstr("init_lora_weights is 'pissa'"));
}

}  // namespace
}  // namespace zoetrope::lora
