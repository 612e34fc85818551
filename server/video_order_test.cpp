#include "server/video_order.h"

#include <gtest/gtest.h>

namespace zoetrope::server {
namespace {

TEST(VideoOrder, BringsEverySettingAsItIs) {
  VideoOrder order;
  order.model = "a model";
  pipeline::GenerateOptions& options = order.options;
  options.model = "/models/wan, the small one";
  options.prompt = "default";
  options.negative_prompt = "two\nlines, a=b";
  options.num_frames = 5;
  options.flow_shift = 3.25;
  options.sigmas = {1, 0.1};
  options.strategy.flash_block_sizes.block_q = 64;
  options.reference_images = {"/jobs/a,b.png", "/jobs/c:1.png"};
  options.lora = {{"/loras/a,b.safetensors", 0.1}};
  options.lora_low = {{"/loras/c:2.safetensors", 1}, {"/loras/d.safetensors", -2}};
  VideoOrder read = parse_video_order(text_of(order));
  EXPECT_EQ(read.model, order.model);
  EXPECT_EQ(read.options.prompt, options.prompt);
  EXPECT_EQ(read.options.negative_prompt, options.negative_prompt);
  EXPECT_EQ(read.options.reference_images, options.reference_images);
  EXPECT_EQ(read.options.lora, options.lora);
  EXPECT_EQ(read.options.lora_high, options.lora_high);
  EXPECT_EQ(read.options.lora_low, options.lora_low);
  EXPECT_EQ(pipeline::describe_options(read.options).values(), pipeline::describe_options(options).values());
}

}  // namespace
}  // namespace zoetrope::server
