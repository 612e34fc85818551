#include "models/encoders/clip_pixels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/json.h"
#include "base/test_folder.h"
#include "io/media/image.h"
#include "models/testing/golden.h"

namespace zoetrope::encoders {
namespace {

namespace fs = std::filesystem;
using golden::GoldenCase;
using ::testing::AllOf;
using ::testing::HasSubstr;

ImageProcessorConfig parse(const std::string& text) {
  return ImageProcessorConfig::from_json(JsonObject::parse(text, "folder/preprocessor_config.json"));
}

// ---- recorded ----

// Every picture of a recorded run, to the bit: a level is exact, and the arithmetic behind it has two roundings.
void expect_recorded(const std::string& pipeline, const std::string& run, const std::vector<std::string>& inputs) {
  const GoldenCase golden("pipelines/" + pipeline, run + ".safetensors");
  const fs::path folder = golden.root() / "pipelines" / pipeline;
  const auto config = ImageProcessorConfig::load(folder / "image_processor/preprocessor_config.json");
  const TensorView recorded = golden.tensor("clip_pixel_values");
  ASSERT_EQ(recorded.extent(0), static_cast<int64_t>(inputs.size()));
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorView expected = recorded.select(0, static_cast<int64_t>(i));
    const Tensor pixels(DType::kF32, expected.shape());
    clip_pixels(config, io::read_image(folder / "inputs" / inputs[i]), pixels);
    EXPECT_EQ(std::memcmp(pixels.data<float>(), expected.raw(), expected.bytes()), 0)
        << inputs[i] << ": max " << golden::difference(pixels, expected).max_abs;
  }
}

TEST(ClipPixels, EqualTheRecordedOnes) {
  expect_recorded("wan21_i2v", "i2v", {"image.png"});
  expect_recorded("wan21_flf2v", "flf2v", {"image.png", "last_image.png"});
}

// ---- configs ----

TEST(ImageProcessorConfig, BothGenerationsOfKeys) {
  const auto old = parse(R"({"size": 224, "crop_size": 200, "resample": 3, "do_resize": true})");
  EXPECT_EQ(old.shortest_edge, 224);
  EXPECT_FALSE(old.size);
  EXPECT_EQ(old.crop, (ImageProcessorConfig::Size{200, 200}));
  EXPECT_DOUBLE_EQ(*old.rescale, 1.0 / 255);
  EXPECT_FALSE(old.lanczos);
  EXPECT_FLOAT_EQ(old.mean[0], 0.48145466f);  // CLIP's, where the file has none
  const auto both = parse(R"({"image_processor": {"size": {"height": 30, "width": 40}, "do_center_crop": false,
                              "resample": 1, "rescale_factor": 0.5, "do_normalize": false,
                              "image_mean": [1, 2, 3], "image_std": [4, 5, 6]}, "tokenizer": {}})");
  EXPECT_FALSE(both.shortest_edge);
  EXPECT_EQ(both.size, (ImageProcessorConfig::Size{30, 40}));
  EXPECT_FALSE(both.crop);
  EXPECT_TRUE(both.lanczos);
  EXPECT_FALSE(both.normalize);
  EXPECT_DOUBLE_EQ(*both.rescale, 0.5);
  EXPECT_EQ(both.std[2], 6);
  const auto none = parse(R"({"do_resize": false, "do_center_crop": false, "do_rescale": false})");
  EXPECT_FALSE(none.shortest_edge || none.size || none.crop || none.rescale);
}

TEST(ImageProcessorConfig, RefusesNamingTheKey) {
  const auto refusal = [](const std::string& text) { return error_of([&] { parse(text); }); };
  EXPECT_THAT(refusal(R"({"crop_size": 8})"),
              AllOf(HasSubstr("preprocessor_config.json"), HasSubstr("size is missing")));
  EXPECT_THAT(refusal(R"({"size": 8})"), HasSubstr("crop_size is missing"));
  EXPECT_THAT(refusal(R"({"size": 0, "crop_size": 8})"), HasSubstr("size"));
  EXPECT_THAT(refusal(R"({"size": {"longest": 8}, "crop_size": 8})"), HasSubstr("height"));
  EXPECT_THAT(refusal(R"({"size": 8, "crop_size": 8, "resample": 2})"), HasSubstr("resample is 2"));
  EXPECT_THAT(refusal(R"({"size": 8, "crop_size": 8, "image_mean": [1, 2]})"), HasSubstr("image_mean has 2 values"));
  EXPECT_THAT(refusal(R"({"size": 8, "crop_size": 8, "image_std": [1, 0, 1]})"), HasSubstr("image_std"));
}

// ---- geometry, on pictures whose levels tell where they come from ----

Tensor numbered(int64_t height, int64_t width) {
  Tensor image(DType::kU8, {height, width, 3});
  for (int64_t i = 0; i < image.size(); ++i) image.data<uint8_t>()[i] = static_cast<uint8_t>(i % 251 + 1);
  return image;
}

ImageProcessorConfig plain() {
  ImageProcessorConfig config;
  config.shortest_edge.reset();
  config.rescale.reset();
  config.normalize = false;
  return config;
}

TEST(ClipPixels, CropsFromTheMiddleAndFillsWithBlack) {
  const Tensor image = numbered(5, 8);
  // Five rows to two and to three: the upper half row goes to the bottom; to eight: two above, one below. Likewise
  // eight columns to five and to eleven.
  const struct {
    int64_t crop, top_or_left_of_rows, of_columns;
  } cases[] = {{2, 1, 3}, {3, 1, 2}, {5, 0, 1}, {8, -2, 0}, {11, -3, -2}};
  for (const auto& c : cases) {
    ImageProcessorConfig config = plain();
    config.crop = ImageProcessorConfig::Size{c.crop, c.crop};
    const Tensor out(DType::kF32, {3, c.crop, c.crop});
    clip_pixels(config, image, out);
    for (int64_t channel = 0; channel < 3; ++channel)
      for (int64_t y = 0; y < c.crop; ++y)
        for (int64_t x = 0; x < c.crop; ++x) {
          const int64_t row = y + c.top_or_left_of_rows, column = x + c.of_columns;
          const bool inside = row >= 0 && row < 5 && column >= 0 && column < 8;
          const float expected = inside ? image.data<uint8_t>()[(row * 8 + column) * 3 + channel] : 0.0f;
          EXPECT_EQ(out.data<float>()[(channel * c.crop + y) * c.crop + x], expected)
              << c.crop << ": " << channel << ", " << y << ", " << x;
        }
  }
}

// The long edge is cut: 10 · 16 / 9 = 17.8 is 17. Resized by io::resize, which has tests of its own.
TEST(ClipPixels, TheShortEdgeSetsTheSize) {
  for (const auto& [height, width, new_height, new_width] :
       {std::array<int64_t, 4>{9, 16, 10, 17}, {16, 9, 17, 10}, {9, 9, 10, 10}}) {
    const Tensor image = numbered(height, width);
    ImageProcessorConfig config = plain();
    config.shortest_edge = 10;
    config.crop.reset();
    const Tensor out(DType::kF32, {3, new_height, new_width});
    clip_pixels(config, image, out);
    const Tensor resized = io::resize(image, {new_height, new_width}, io::ResizeFilter::kBicubic);
    for (int64_t i = 0; i < new_height * new_width; ++i) {
      EXPECT_EQ(out.data<float>()[i], static_cast<float>(resized.data<uint8_t>()[3 * i]));
    }
    const Tensor other(DType::kF32, {3, new_height, new_width + 1});
    EXPECT_THAT(error_of([&] { clip_pixels(config, image, other); }), HasSubstr("do not belong together"));
  }
}

}  // namespace
}  // namespace zoetrope::encoders
