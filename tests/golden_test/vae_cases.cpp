// vae21, vae22: activations, encode and decode of both generations of the VAE, whole and in tiles.
#include <functional>
#include <map>
#include <optional>
#include <regex>

#include "base/error.h"
#include "device/stream.h"
#include "io/weights/checkpoint.h"
#include "io/weights/tensor_file.h"
#include "io/weights/weights.h"
#include "models/wan/vae/latents.h"
#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_layout.h"
#include "models/wan/vae/vae_tiling.h"
#include "passes.h"
#include "report.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;

// [F, H, W, 3] bytes → (u − 127.5)/127.5.
Tensor to_video(const TensorView& bytes) {
  Tensor video(DType::kF32, bytes.shape());
  const std::vector<double> values = to_doubles(bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    video.data<float>()[i] = (static_cast<float>(values[i]) - 127.5f) / 127.5f;
  }
  return video;
}

// Chunks [C, n, H, W] of one probe name, joined along time as [1, C, T, H, W].
class Chunks {
 public:
  Probe probe() {
    return [this](std::string_view name, const TensorView& value) {
      auto& frames = seen_[std::string(name)];
      for (int64_t f = 0; f < value.extent(1); ++f) {
        frames.push_back(to_doubles(value.select(1, f)));
        shapes_[std::string(name)] = {value.extent(0), value.extent(2), value.extent(3)};
      }
    };
  }
  bool has(const std::string& name) const { return seen_.count(name) != 0; }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& [name, frames] : seen_) all.push_back(name);
    return all;
  }
  Tensor joined(const std::string& name) const {
    const auto& frames = seen_.at(name);
    const Shape& one = shapes_.at(name);
    const auto count = static_cast<int64_t>(frames.size()), plane = one[1] * one[2];
    Tensor out(DType::kF32, {1, one[0], count, one[1], one[2]});
    for (int64_t c = 0; c < one[0]; ++c) {
      for (int64_t f = 0; f < count; ++f) {
        for (int64_t i = 0; i < plane; ++i) {
          out.data<float>()[(c * count + f) * plane + i] =
              static_cast<float>(frames[static_cast<size_t>(f)][static_cast<size_t>(c * plane + i)]);
        }
      }
    }
    return out;
  }

 private:
  std::map<std::string, std::vector<std::vector<double>>> seen_;
  std::map<std::string, Shape> shapes_;
};

// The whole clip as [1, 3, F, H, W], from what `decode` gives the sink.
Tensor collected(const std::function<void(const wan::FrameCallback&)>& decode) {
  std::vector<std::vector<double>> frames;
  Shape one;
  decode([&](int64_t, const TensorView& made) {
    one = {made.extent(1), made.extent(2)};
    for (int64_t f = 0; f < made.extent(0); ++f) frames.push_back(to_doubles(made.select(0, f)));
  });
  const auto count = static_cast<int64_t>(frames.size()), plane = one[0] * one[1];
  Tensor out(DType::kF32, {1, 3, count, one[0], one[1]});
  for (int64_t c = 0; c < 3; ++c) {
    for (int64_t f = 0; f < count; ++f) {
      for (int64_t i = 0; i < plane; ++i) {
        out.data<float>()[(c * count + f) * plane + i] =
            static_cast<float>(frames[static_cast<size_t>(f)][static_cast<size_t>(i * 3 + c)]);
      }
    }
  }
  return out;
}

}  // namespace

Tensor decode(Stream& stream, wan::VaeDecoder& decoder, const TensorView& z, const Probe& probe) {
  return collected([&](const wan::FrameCallback& sink) { decoder.decode(stream, z, sink, probe); });
}

namespace {

struct Vae {
  wan::VaeConfig config;
  wan::VaeDecoder decoder;
  wan::VaeEncoder encoder;
  Stream stream;
};

void check_clips(Report& report, Vae& vae, const io::TensorFile& data, const NoiseFloor& noise) {
  static const std::regex encode_name("encode\\.f([0-9]+)\\.moments"), decode_name("decode\\.f([0-9]+)\\.sample");
  const Tensor video = to_video(data.tensor("in.video_u8"));
  for (const auto& [name, info] : data.tensors()) {
    std::smatch match;
    if (std::regex_match(name, match, encode_name)) {
      const std::string n = match[1];
      const TensorView recorded = data.tensor(name);
      Tensor moments(DType::kF32, recorded.shape());
      vae.encoder.encode(vae.stream, video.view().slice(0, 0, std::stoll(n)), moments);
      report.check(name, moments, recorded, float32_tolerance(noise.of("f32_vs_f64", "encode.f" + n)));
    } else if (std::regex_match(name, match, decode_name)) {
      const std::string n = match[1];
      const TensorView mean = wan::mode(data.tensor("encode.f" + n + ".moments"));
      report.check(name, decode(vae.stream, vae.decoder, mean), data.tensor(name),
                   float32_tolerance(noise.of("f32_vs_f64", "decode.f" + n)));
    }
  }
}

void check_seen(Report& report, const Chunks& chunks, const std::string& prefix, const io::TensorFile& data,
                const NoiseFloor& noise) {
  for (const auto& [name, info] : data.tensors()) {
    if (name.rfind(prefix, 0) != 0) continue;
    const std::string part = name.substr(prefix.size());
    if (part == "sample" || part == "moments") continue;  // checked from the result
    if (!chunks.has(part)) {
      report.fail(name, "the engine shows no such tensor");
    } else {
      report.check(name, chunks.joined(part), data.tensor(name), float32_tolerance(noise.of("f32_vs_f64", name)));
    }
  }
  std::vector<std::string> absent;
  for (const std::string& part : chunks.names())
    if (!data.contains(prefix + part)) absent.push_back(prefix + part);
  report.absent(absent);
}

// Frames, height and width of the crop that the encoder saw, from what was recorded of it; none where nothing tells.
std::optional<Shape> encoded_crop(const wan::VaeConfig& config, const io::TensorFile& data) {
  if (data.contains("encode.conv_in")) {
    const TensorView first = data.tensor("encode.conv_in");
    return Shape{first.extent(2), config.patch_size * first.extent(3), config.patch_size * first.extent(4)};
  }
  if (!data.contains("encode.moments")) return std::nullopt;
  const TensorView moments = data.tensor("encode.moments");
  const int axis = moments.rank() - 3;  // with a batch of one or without
  const int64_t spatial = config.spatial_factor();
  return Shape{config.temporal_factor() * (moments.extent(axis) - 1) + 1, spatial * moments.extent(axis + 1),
               spatial * moments.extent(axis + 2)};
}

void check_decoder(Report& report, Vae& vae, const io::TensorFile& data, const NoiseFloor& noise) {
  const auto tolerance = [&](const std::string& name) { return float32_tolerance(noise.of("f32_vs_f64", name)); };
  if (!data.contains("in.z")) return report.absent({"in.z", "decode.*"});
  if (data.contains("in.normalized_latents")) {
    const TensorView normalized = data.tensor("in.normalized_latents");
    Tensor z(DType::kF32, normalized.shape());
    wan::denormalize_latents(vae.config, normalized, z);
    report.check("in.z", z, data.tensor("in.z"), tolerance("in.z"));
  } else {
    report.absent({"in.normalized_latents"});
  }
  Chunks decoded;
  const Tensor sample = decode(vae.stream, vae.decoder, data.tensor("in.z"), decoded.probe());
  check_seen(report, decoded, "decode.", data, noise);
  if (!data.contains("decode.sample")) return report.absent({"decode.sample"});
  report.check("decode.sample", sample, data.tensor("decode.sample"), tolerance("decode.sample"));
}

void check_encoder(Report& report, Vae& vae, const io::TensorFile& data, const TensorView& video_u8,
                   const NoiseFloor& noise) {
  const std::optional<Shape> seen = encoded_crop(vae.config, data);
  if (!seen) return report.absent({"encode.conv_in", "encode.moments"});
  const Tensor crop = to_video(video_u8.slice(0, 0, (*seen)[0]).slice(1, 0, (*seen)[1]).slice(2, 0, (*seen)[2]));
  Tensor moments(DType::kF32, vae.encoder.moments_shape(crop.shape()));
  Chunks encoded;
  vae.encoder.encode(vae.stream, crop, moments, encoded.probe());
  check_seen(report, encoded, "encode.", data, noise);
  if (!data.contains("encode.moments")) return report.absent({"encode.moments"});
  report.check("encode.moments", moments.view().reshape(data.tensor("encode.moments").shape()),
               data.tensor("encode.moments"), float32_tolerance(noise.of("f32_vs_f64", "encode.moments")));
}

void check_tiled(Report& report, Vae& vae, const io::TensorFile& data, const JsonObject& tiling,
                 const NoiseFloor& noise) {
  const wan::TileSizes sizes{
      tiling.get<int64_t>("tile_sample_min_height"), tiling.get<int64_t>("tile_sample_min_width"),
      tiling.get<int64_t>("tile_sample_stride_height"), tiling.get<int64_t>("tile_sample_stride_width")};
  const Tensor video = to_video(data.tensor("in.video_u8"));
  const TensorView recorded = data.tensor("encode.moments");
  const TensorView mean = wan::mode(recorded);
  report.check_that("tiled", "larger than one tile", [&](bool moved) {
    const wan::TileSizes all{video.extent(1), video.extent(2), video.extent(1), video.extent(2)};
    const wan::TileSizes& used = moved ? all : sizes;
    return wan::encodes_in_tiles(video.shape(), used) && wan::decodes_in_tiles(vae.config, mean.shape(), used);
  });
  Tensor moments(DType::kF32, recorded.shape());
  wan::encode_tiled(vae.stream, vae.encoder, vae.config, video, moments, sizes);
  report.check("tiled.encode.moments", moments, recorded, float32_tolerance(noise.of("f32_vs_f64", "tiled_encode")));
  const Tensor sample = collected([&](const wan::FrameCallback& sink) {
    wan::decode_tiled(vae.stream, vae.decoder, vae.config, mean, sink, {}, sizes);
  });
  report.check("tiled.decode.sample", sample, data.tensor("decode.sample"),
               float32_tolerance(noise.of("f32_vs_f64", "tiled_decode")));
}

}  // namespace

void run_vae_case(Report& report, const fs::path& root, const fs::path& folder) {
  const auto json = load_case(folder);
  const NoiseFloor noise(json);
  const fs::path checkpoint = root / json.get<std::string>("checkpoint");
  const auto config = wan::VaeConfig::load(checkpoint / "config.json");
  const auto weights = std::make_shared<wan::VaeWeights>(
      config, io::checkpoint_source(io::Checkpoint::open(checkpoint, "diffusion_pytorch_model")));
  Vae vae{config, wan::VaeDecoder(weights), wan::VaeEncoder(weights), Stream(available_threads())};
  const auto data = io::TensorFile::open(folder / "tensors.safetensors");
  check_clips(report, vae, *data, noise);
  if (fs::exists(folder / "activations.safetensors")) {
    const auto activations = io::TensorFile::open(folder / "activations.safetensors");
    check_decoder(report, vae, *activations, noise);
    check_encoder(report, vae, *activations, data->tensor("in.video_u8"), noise);
  } else {
    report.absent({"activations.safetensors"});
  }
  if (fs::exists(folder / "tiled.safetensors") && json.has("tiling")) {
    check_tiled(report, vae, *io::TensorFile::open(folder / "tiled.safetensors"), json.object("tiling"), noise);
  } else {
    report.absent({"tiled.safetensors"});
  }
}

}  // namespace zoetrope::golden
