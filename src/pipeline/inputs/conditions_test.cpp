#include "pipeline/inputs/conditions.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "io/media/image.h"
#include "io/weights/tensor_file.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

std::shared_ptr<const io::TensorFile> recorded(const std::string& model, const std::string& run) {
  return io::TensorFile::open(recorded_model(model) / (run + ".safetensors"));
}

double largest_difference(const TensorView& a, const TensorView& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (int64_t i = 0; i < a.size(); ++i)
    most = std::max<double>(most, std::fabs(a.data<float>()[i] - b.data<float>()[i]));
  return most;
}

// 0, 1, 2, … plus `first`.
Tensor counting(const Shape& shape, float first) {
  Tensor tensor(DType::kF32, shape);
  std::iota(tensor.data<float>(), tensor.data<float>() + tensor.size(), first);
  return tensor;
}

Tensor bytes_of(const Shape& shape, uint8_t (*value)(int64_t)) {
  Tensor bytes(DType::kU8, shape);
  for (int64_t i = 0; i < bytes.size(); ++i) bytes.data<uint8_t>()[i] = value(i);
  return bytes;
}

Tensor picture(const std::string& name) { return io::read_image(recorded_model("wan21_vace") / "inputs" / name); }

TEST(Conditions, MasksOfGivenFramesAreTheRecordedOnes) {
  struct Case {
    const char *model, *run;
    GivenEnds given;
  };
  for (const Case& c : {Case{"wan21_i2v", "i2v", GivenEnds::kFirst}, Case{"wan22_i2v", "i2v", GivenEnds::kFirst},
                        Case{"wan21_flf2v", "flf2v", GivenEnds::kFirstAndLast}}) {
    const auto file = recorded(c.model, c.run);
    const TensorView condition = file->tensor("condition").select(0, 0);
    const Tensor mask = frame_mask({condition.extent(1), condition.extent(2), condition.extent(3)}, 4, c.given);
    EXPECT_EQ(largest_difference(mask, condition.slice(0, 0, 4)), 0) << c.model;
  }
}

TEST(Conditions, TheLastFrameIsTheLastChannelOfTheLastLatentFrame) {
  const Tensor mask = frame_mask({3, 1, 1}, 4, GivenEnds::kFirstAndLast);
  const std::vector<float> values(mask.data<float>(), mask.data<float>() + mask.size());
  EXPECT_EQ(values, (std::vector<float>{1, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1}));
}

TEST(Conditions, ControlMasksAreTheRecordedOnes) {
  const auto masked = recorded("wan21_vace", "masked");
  Tensor mask = Tensor::uninitialized(DType::kU8, {5, 32, 48, 3});
  for (int64_t f = 0; f < 5; ++f) {
    const Tensor frame = picture(fmt::format("mask_{:02}.png", f));
    std::memcpy(mask.view().select(0, f).raw(), frame.view().raw(), frame.view().bytes());
  }
  EXPECT_EQ(largest_difference(first_channel(mask), masked->tensor("control.video_mask")), 0);
  EXPECT_EQ(largest_difference(mask_channels(mask, 5, {2, 4, 6}, 8, 1), masked->tensor("control.mask")), 0);
  const auto text = recorded("wan21_vace", "text_only");
  EXPECT_EQ(largest_difference(mask_channels({}, 5, {2, 4, 4}, 8, 0), text->tensor("control.mask")), 0);
}

TEST(Conditions, ReferencesAreFittedLikeTheRecordedOne) {
  const Tensor own = picture("reference_0.png");  // 50 rows are not a multiple of eight
  const Tensor whole = io::resize(own, {own.extent(0) / 8 * 8, own.extent(1) / 8 * 8}, io::ResizeFilter::kLanczos);
  const Tensor canvas(DType::kF32, {32, 48, 3});
  reference_canvas(whole, canvas);
  const auto file = recorded("wan21_vace", "masked");
  const TensorView expected = file->tensor("control.reference.0");  // [3, H, W]
  double most = 0;
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t i = 0; i < 32 * 48; ++i)
      most =
          std::max<double>(most, std::fabs(canvas.data<float>()[i * 3 + c] - expected.select(0, c).data<float>()[i]));
  EXPECT_LT(most, 4e-7);  // a few roundings of values up to 1
}

TEST(Conditions, AReferenceStandsInTheMiddleOfWhite) {
  const Tensor black(DType::kU8, {8, 8, 3}), canvas(DType::kF32, {4, 9, 3});
  reference_canvas(black, canvas);
  for (int64_t x = 0; x < 9; ++x) EXPECT_EQ(canvas.data<float>()[x * 3], x >= 2 && x < 6 ? -1.0f : 1.0f) << x;
}

TEST(Conditions, PixelsGoFromMinusOneToOne) {
  const Tensor bytes = bytes_of({256}, [](int64_t i) { return static_cast<uint8_t>(i); });
  const Tensor values(DType::kF32, {256});
  to_signed_unit(bytes, values);
  EXPECT_EQ(values.data<float>()[0], -1.0f);
  EXPECT_EQ(values.data<float>()[255], 1.0f);
  EXPECT_NEAR(values.data<float>()[128], 1.0 / 255, 1e-7);
}

TEST(Conditions, AMaskDividesAFrame) {
  const Tensor frame = bytes_of({2, 4, 3}, [](int64_t i) { return static_cast<uint8_t>(10 * i); });
  const Tensor mask = bytes_of({2, 4, 3}, [](int64_t i) { return static_cast<uint8_t>(i % 2 == 0 ? 127 : 128); });
  const Tensor whole(DType::kF32, {2, 4, 3}), inactive(DType::kF32, {2, 4, 3}), reactive(DType::kF32, {2, 4, 3});
  to_signed_unit(frame, whole);
  masked_frame(frame, mask, MaskHalf::kInactive, inactive);
  masked_frame(frame, mask, MaskHalf::kReactive, reactive);
  for (int64_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(inactive.data<float>()[i], i % 2 == 0 ? whole.data<float>()[i] : 0.0f);
    EXPECT_EQ(reactive.data<float>()[i], i % 2 == 0 ? 0.0f : whole.data<float>()[i]);
  }
  // Without a mask everything is regenerated.
  masked_frame(frame, {}, MaskHalf::kReactive, reactive);
  EXPECT_EQ(largest_difference(reactive, whole), 0);
  masked_frame(frame, {}, MaskHalf::kInactive, inactive);
  for (int64_t i = 0; i < inactive.size(); ++i) EXPECT_EQ(inactive.data<float>()[i], 0.0f);
}

TEST(Conditions, MasksAreTakenAtTheFramesNearestInTime) {
  // Nine frames for three: those at 1.5, 4.5 and 7.5, each of its own brightness.
  const Tensor mask = bytes_of({9, 2, 2, 3}, [](int64_t i) { return static_cast<uint8_t>(20 * (i / 12)); });
  const Tensor channels = mask_channels(mask, 9, {3, 1, 1}, 2, 2);
  EXPECT_EQ(channels.shape(), (Shape{4, 5, 1, 1}));
  for (int64_t c = 0; c < 4; ++c) {
    const float* frames = channels.view().select(0, c).data<float>();
    EXPECT_EQ(frames[0], 0.0f);
    EXPECT_EQ(frames[1], 0.0f);
    for (int64_t t = 0; t < 3; ++t) EXPECT_NEAR(frames[2 + t] * 255, 20.0 * static_cast<double>(1 + 3 * t), 1e-4);
  }
}

TEST(Conditions, CellsOfAMaskBecomeChannelsRowByRow) {
  // One frame of 2 × 4 pixels, cells of 2 × 2: channel dy·2 + dx of cell x is pixel (dy, 2x + dx).
  const Tensor mask = bytes_of({1, 2, 4, 3}, [](int64_t i) { return static_cast<uint8_t>(i / 3); });
  const Tensor channels = mask_channels(mask, 1, {1, 1, 2}, 2, 0);
  const double expected[] = {0, 2, 1, 3, 4, 6, 5, 7};
  for (int64_t i = 0; i < channels.size(); ++i) EXPECT_NEAR(channels.data<float>()[i] * 255, expected[i], 1e-4) << i;
}

TEST(Conditions, AStepSeesLatentsThenChannels) {
  Conditions conditions;
  const Tensor mask = counting({1, 2, 1, 2}, 100), image = counting({2, 2, 1, 2}, 200);
  conditions.channels = joined_channels(mask, image);
  const Tensor latents = counting({1, 2, 2, 1, 2}, 0);
  const StepInput input(conditions, latents.shape());
  const TensorView all = input.of(latents);
  ASSERT_EQ(all.shape(), (Shape{1, 5, 2, 1, 2}));
  EXPECT_EQ(largest_difference(all.select(0, 0).slice(0, 0, 2), latents), 0);
  EXPECT_EQ(largest_difference(all.select(0, 0).slice(0, 2, 3), mask), 0);
  EXPECT_EQ(largest_difference(all.select(0, 0).slice(0, 3, 5), image), 0);
}

TEST(Conditions, GivenFramesTakeThePlaceOfTheFirst) {
  Conditions conditions;
  conditions.given_frames = counting({1, 2, 1, 1, 2}, 100);
  const Tensor latents = counting({1, 2, 3, 1, 2}, 0);
  const StepInput input(conditions, latents.shape());
  const TensorView seen = input.of(latents);
  const std::vector<float> values(seen.data<float>(), seen.data<float>() + seen.size());
  EXPECT_EQ(values, (std::vector<float>{100, 101, 2, 3, 4, 5, 102, 103, 8, 9, 10, 11}));
  EXPECT_EQ(latents.data<float>()[0], 0.0f) << "the latents themselves stay";
  EXPECT_EQ(conditions.clean_frames(), 1);
  put_given_frames(conditions, latents);
  EXPECT_EQ(largest_difference(latents, seen), 0);
}

TEST(Conditions, WithoutAnyTheLatentsAreTheInput) {
  const Conditions none;
  const Tensor latents = counting({1, 2, 3, 1, 2}, 0);
  const StepInput input(none, latents.shape());
  EXPECT_EQ(input.of(latents).raw(), latents.view().raw());
  EXPECT_EQ(none.clean_frames(), 0);
}

TEST(Conditions, SizesFollowThePicture) {
  using io::ImageSize;
  EXPECT_EQ(size_of_area({480, 832}, 480 * 832, 16), (ImageSize{480, 832}));
  EXPECT_EQ(size_of_area({1080, 1920}, 720 * 1280, 16), (ImageSize{720, 1280}));
  EXPECT_EQ(size_of_area({1000, 1000}, 480 * 832, 16), (ImageSize{624, 624}));  // √399360 is 631.9
  EXPECT_EQ(size_of_area({1, 1000}, 256, 16), (ImageSize{16, 496}));            // never less than one unit
  // A video's own size, in whole tokens; shrunk where it has more pixels than were asked for.
  EXPECT_EQ(control_size({480, 832}, {480, 832}, 16), (ImageSize{480, 832}));
  EXPECT_EQ(control_size({1080, 1920}, {480, 832}, 16), (ImageSize{464, 832}));  // 832/1920 of 1080 is 468
  EXPECT_EQ(control_size({250, 400}, {480, 832}, 16), (ImageSize{240, 400}));
  EXPECT_EQ(fitted_size({40, 48}, {32, 48}), (ImageSize{32, 38}));
  EXPECT_EQ(fitted_size({10, 20}, {100, 100}), (ImageSize{50, 100}));
}

}  // namespace
}  // namespace zoetrope::pipeline
