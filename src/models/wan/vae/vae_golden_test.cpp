// Encode, decode and activations against what the reference implementation recorded (tests/golden, cases vae21 and
// vae22).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/project_folders.h"
#include "io/weights/checkpoint.h"
#include "io/weights/tensor_file.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_test_util.h"

namespace zoetrope::wan {
namespace {

const std::filesystem::path kGolden = kGoldenFolder;

struct Floor {
  double max_abs = 0, relative_l2 = 0, reference_max = 1;
};

class VaeGolden : public testing::TestWithParam<std::tuple<const char*, kernels::ConvAlgorithm>> {
 protected:
  VaeGolden()
      : case_(JsonObject::load(kGolden / name() / "case.json")),
        folder_(kGolden / case_.get<std::string>("checkpoint")),
        config_(VaeConfig::load(folder_ / "config.json")),
        source_(io::checkpoint_source(io::Checkpoint::open(folder_, "diffusion_pytorch_model"))),
        tensors_(io::TensorFile::open(kGolden / name() / "tensors.safetensors")),
        activations_(io::TensorFile::open(kGolden / name() / "activations.safetensors")) {}

  static const char* name() { return std::get<0>(GetParam()); }
  std::shared_ptr<const VaeWeights> weights(const std::shared_ptr<const io::WeightSource>& source) const {
    return std::make_shared<const VaeWeights>(config_, source,
                                              VaeUse{VaeParts::kBoth, DType::kF32, std::get<1>(GetParam())});
  }
  std::shared_ptr<const VaeWeights> weights() const { return weights(source_); }

  Floor floor(const std::string& key) const {
    const JsonObject noise = case_.object("noise").object("f32_vs_f64." + key);
    return {noise.get<double>("max_abs"), noise.get<double>("rel_l2"), noise.get<double>("ref_max_abs")};
  }
  // For tensors without one of their own: the largest of the case, the absolute one in proportion to the values.
  Floor largest_floor(const TensorView& reference) const {
    Floor largest{0, 0, difference(reference, reference).reference_max};
    for (const std::string& key : case_.object("noise").keys()) {
      if (key.rfind("f32_vs_f64.", 0) != 0) continue;
      const Floor one = floor(key.substr(key.find('.') + 1));
      largest.relative_l2 = std::max(largest.relative_l2, one.relative_l2);
      largest.max_abs = std::max(largest.max_abs, one.max_abs / one.reference_max * largest.reference_max);
    }
    return largest;
  }

  // A float32 engine may be four times as far from the recorded float32 run as that is from float64.
  static bool within(const Difference& d, const Floor& floor) {
    return d.relative_l2 <= 4 * floor.relative_l2 && d.max_abs <= 4 * floor.max_abs;
  }
  static void expect_within(const std::string& name, const TensorView& value, const TensorView& reference,
                            const Floor& floor) {
    const Difference d = difference(value, reference);
    EXPECT_TRUE(within(d, floor)) << name << ": max " << d.max_abs << " of " << 4 * floor.max_abs << ", relative "
                                  << d.relative_l2 << " of " << 4 * floor.relative_l2;
  }

  Tensor video(int64_t frames, int64_t height, int64_t width) const {
    const TensorView stored = tensors_->tensor("in.video_u8").slice(0, 0, frames);
    Tensor video(DType::kF32, {frames, height, width, 3});
    for (int64_t i = 0; i < video.size(); ++i) {
      const int64_t channel = i % 3, x = i / 3 % width, y = i / 3 / width % height, f = i / 3 / width / height;
      const uint8_t u =
          stored.data<uint8_t>()[f * stored.stride(0) + y * stored.stride(1) + x * stored.stride(2) + channel];
      video.data<float>()[i] = (static_cast<float>(u) - 127.5f) / 127.5f;
    }
    return video;
  }

  Tensor decode(VaeDecoder& decoder, const TensorView& z, const Probe& probe = {}) const {
    const int64_t factor = config_.spatial_factor();
    Tensor frames(DType::kF32, {config_.video_frames(z.extent(-3)), factor * z.extent(-2), factor * z.extent(-1), 3});
    Stream stream(2);
    decoder.decode(
        stream, z,
        [&](int64_t first, const TensorView& piece) {
          copy(stream, frames.view().slice(0, first, first + piece.extent(0)), piece);
        },
        probe);
    return frames;
  }

  // Every recorded tensor of one half but its result.
  template <typename Joined>
  void expect_all_seen(const std::string& half, const Joined& joined) const {
    for (const auto& [name, info] : activations_->tensors()) {
      if (name.rfind(half, 0) != 0 || name == half + "sample" || name == half + "moments") continue;
      EXPECT_TRUE(joined.count(name)) << name;
    }
  }

  JsonObject case_;
  std::filesystem::path folder_;
  VaeConfig config_;
  std::shared_ptr<const io::WeightSource> source_;
  std::shared_ptr<const io::TensorFile> tensors_, activations_;
};

// [F, H, W, 3] as the recorded [1, 3, F, H, W].
TensorView channels_first(const TensorView& frames) { return frames.permute({3, 0, 1, 2}); }

// Joins the pieces that a probe sees into whole tensors.
class Joiner {
 public:
  Joiner(std::string prefix, std::shared_ptr<const io::TensorFile> file)
      : prefix_(std::move(prefix)), file_(std::move(file)) {}
  Probe probe() {
    return [this](std::string_view name, const TensorView& value) {
      const std::string key = prefix_ + std::string(name);
      if (!file_->contains(key)) return;
      auto& [whole, filled] = joined_[key];
      if (!whole) whole = Tensor(DType::kF32, file_->tensor(key).select(0, 0).shape());
      copy(stream_, whole.view().slice(1, filled, filled + value.extent(1)), value);
      filled += value.extent(1);
    };
  }
  std::map<std::string, std::pair<Tensor, int64_t>>& joined() { return joined_; }

 private:
  std::string prefix_;
  std::shared_ptr<const io::TensorFile> file_;
  Stream stream_{1};
  std::map<std::string, std::pair<Tensor, int64_t>> joined_;
};

TEST_P(VaeGolden, EncodesAsRecorded) {
  VaeEncoder encoder(weights());
  Stream stream(2);
  int seen = 0;
  for (const auto& [name, info] : tensors_->tensors()) {
    if (name.rfind("encode.f", 0) != 0) continue;
    ++seen;
    const std::string key = name.substr(0, name.rfind('.'));  // "encode.f5"
    const TensorView reference = tensors_->tensor(name).select(0, 0);
    const TensorView stored = tensors_->tensor("in.video_u8");
    const Tensor input = video(std::stol(key.substr(8)), stored.extent(1), stored.extent(2));
    Tensor moments(DType::kF32, encoder.moments_shape(input.shape()));
    encoder.encode(stream, input, moments);
    expect_within(name, moments, reference, floor(key));
  }
  EXPECT_GT(seen, 0);
}

TEST_P(VaeGolden, DecodesAsRecorded) {
  VaeDecoder decoder(weights());
  int seen = 0;
  for (const auto& [name, info] : tensors_->tensors()) {
    if (name.rfind("decode.f", 0) != 0) continue;
    ++seen;
    const std::string key = name.substr(0, name.rfind('.'));
    const TensorView z = mode(tensors_->tensor("encode." + key.substr(7) + ".moments"));
    const Tensor frames = decode(decoder, z);
    expect_within(name, channels_first(frames), tensors_->tensor(name).select(0, 0), floor(key));
  }
  EXPECT_GT(seen, 0);
}

TEST_P(VaeGolden, ActivationsOfTheDecoderAreAsRecorded) {
  const TensorView normalized = activations_->tensor("in.normalized_latents");
  const TensorView z = activations_->tensor("in.z");
  Tensor ours(DType::kF32, z.shape());
  denormalize_latents(config_, normalized, ours);
  EXPECT_EQ(difference(ours, z).max_abs, 0);

  VaeDecoder decoder(weights());
  Joiner joiner("decode.", activations_);
  const Tensor frames = decode(decoder, ours, joiner.probe());
  const TensorView sample = activations_->tensor("decode.sample").select(0, 0);
  expect_within("decode.sample", channels_first(frames), sample, largest_floor(sample));
  expect_all_seen("decode.", joiner.joined());
  for (const auto& [name, joined] : joiner.joined()) {
    const TensorView reference = activations_->tensor(name).select(0, 0);
    EXPECT_EQ(joined.second, reference.extent(1)) << name;
    expect_within(name, joined.first, reference, largest_floor(reference));
  }
}

TEST_P(VaeGolden, ActivationsOfTheEncoderAreAsRecorded) {
  const TensorView reference_moments = activations_->tensor("encode.moments").select(0, 0);
  const TensorView conv_in = activations_->tensor("encode.conv_in");
  VaeEncoder encoder(weights());
  Joiner joiner("encode.", activations_);
  Stream stream(2);
  const int64_t patch = config_.patch_size;
  const Tensor input = video(conv_in.extent(2), patch * conv_in.extent(3), patch * conv_in.extent(4));
  Tensor moments(DType::kF32, encoder.moments_shape(input.shape()));
  encoder.encode(stream, input, moments, joiner.probe());
  expect_within("encode.moments", moments, reference_moments, largest_floor(reference_moments));
  expect_all_seen("encode.", joiner.joined());
  for (const auto& [name, joined] : joiner.joined()) {
    const TensorView reference = activations_->tensor(name).select(0, 0);
    EXPECT_EQ(joined.second, reference.extent(1)) << name;
    expect_within(name, joined.first, reference, largest_floor(reference));
  }
}

INSTANTIATE_TEST_SUITE_P(Generations, VaeGolden,
                         testing::Combine(testing::Values("vae21", "vae22"),
                                          testing::Values(kernels::ConvAlgorithm::kDirect,
                                                          kernels::ConvAlgorithm::kWinograd)),
                         [](const auto& tested) {
                           const bool winograd = std::get<1>(tested.param) == kernels::ConvAlgorithm::kWinograd;
                           return std::string(std::get<0>(tested.param)) + (winograd ? "Winograd" : "");
                         });

// The comparison would notice: one element of one parameter moved, one of each kind of layer.
struct Moved {
  const char* golden;
  const char* key;  // a clip long enough for every tap over time to see more than zeros
  std::vector<const char*> decoder, encoder;
};
const Moved kMoved[] = {
    {"vae21",
     "f17",
     {"post_quant_conv.weight", "decoder.conv_in.bias", "decoder.mid_block.resnets.0.norm2.gamma",
      "decoder.mid_block.attentions.0.to_qkv.weight", "decoder.mid_block.attentions.0.proj.bias",
      "decoder.up_blocks.0.upsamplers.0.time_conv.weight", "decoder.up_blocks.1.resnets.0.conv_shortcut.weight",
      "decoder.up_blocks.2.upsamplers.0.resample.1.weight", "decoder.up_blocks.3.resnets.2.conv2.weight",
      "decoder.norm_out.gamma", "decoder.conv_out.bias"},
     {"encoder.conv_in.weight", "encoder.down_blocks.2.resample.1.bias", "encoder.down_blocks.5.time_conv.weight",
      "encoder.down_blocks.6.conv_shortcut.bias", "encoder.mid_block.attentions.0.norm.gamma", "quant_conv.weight"}},
    {"vae22",
     "f9",
     {"post_quant_conv.weight", "decoder.conv_in.bias", "decoder.mid_block.resnets.0.norm2.gamma",
      "decoder.up_blocks.0.upsampler.time_conv.bias", "decoder.up_blocks.2.resnets.0.conv_shortcut.weight",
      "decoder.up_blocks.2.upsampler.resample.1.weight", "decoder.up_blocks.3.resnets.2.conv2.weight",
      "decoder.norm_out.gamma", "decoder.conv_out.bias"},
     {"encoder.conv_in.weight", "encoder.down_blocks.0.downsampler.resample.1.bias",
      "encoder.down_blocks.1.downsampler.time_conv.weight", "encoder.down_blocks.1.resnets.0.conv_shortcut.bias",
      "encoder.down_blocks.3.resnets.1.conv1.weight", "quant_conv.weight"}},
};

TEST_P(VaeGolden, AMovedParameterIsNoticed) {
  const Moved& moved = kMoved[0].golden == std::string(name()) ? kMoved[0] : kMoved[1];
  const std::string key = moved.key;
  const TensorView moments = tensors_->tensor("encode." + key + ".moments");
  const TensorView sample = tensors_->tensor("decode." + key + ".sample").select(0, 0);
  for (const char* name : moved.decoder) {
    VaeDecoder decoder(weights(std::make_shared<PerturbedSource>(source_, name, 0.05f)));
    const Tensor frames = decode(decoder, mode(moments));
    EXPECT_FALSE(within(difference(channels_first(frames), sample), floor("decode." + key))) << name;
  }
  Stream stream(1);
  const TensorView stored = tensors_->tensor("in.video_u8");
  const Tensor input = video(std::stol(key.substr(1)), stored.extent(1), stored.extent(2));
  for (const char* name : moved.encoder) {
    VaeEncoder encoder(weights(std::make_shared<PerturbedSource>(source_, name, 0.05f)));
    Tensor ours(DType::kF32, encoder.moments_shape(input.shape()));
    encoder.encode(stream, input, ours);
    EXPECT_FALSE(within(difference(ours, moments.select(0, 0)), floor("encode." + key))) << name;
  }
}

}  // namespace
}  // namespace zoetrope::wan
