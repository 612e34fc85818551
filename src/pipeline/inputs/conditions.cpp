#include "pipeline/inputs/conditions.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "device/stream.h"

namespace zoetrope::pipeline {

using io::ImageSize;

namespace {

constexpr int64_t kColours = 3;

float signed_unit(uint8_t byte) { return 2.0f * (static_cast<float>(byte) / 255.0f) - 1.0f; }
// A mask is read like a picture and then brought back to [0, 1].
float unit(uint8_t byte) { return std::clamp((signed_unit(byte) + 1.0f) / 2.0f, 0.0f, 1.0f); }

// Channels [first, first + from's) of `to` [C, T, h, w], frames [0, from's), both contiguous in a frame.
void put(const TensorView& from, const TensorView& to, int64_t first) {
  const auto bytes = static_cast<size_t>(from.extent(2) * from.extent(3)) * sizeof(float);
  for (int64_t c = 0; c < from.extent(0); ++c)
    for (int64_t t = 0; t < from.extent(1); ++t)
      std::memcpy(to.select(0, first + c).select(0, t).raw(), from.select(0, c).select(0, t).raw(), bytes);
}

// Bilinear, corners of pixels not aligned: which two samples, and the second's weight.
struct Tap {
  int64_t low, high;
  float weight;
};
std::vector<Tap> taps(int64_t from, int64_t to) {
  std::vector<Tap> all;
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  for (int64_t i = 0; i < to; ++i) {
    const float at = std::max(0.0f, scale * (static_cast<float>(i) + 0.5f) - 0.5f);
    const int64_t low = std::min(static_cast<int64_t>(at), from - 1);
    all.push_back({low, std::min(low + 1, from - 1), std::clamp(at - static_cast<float>(low), 0.0f, 1.0f)});
  }
  return all;
}

int64_t whole_units(double length, int64_t unit_length) {
  return std::max<int64_t>(1, static_cast<int64_t>(std::nearbyint(length)) / unit_length) * unit_length;
}

}  // namespace

StepInput::StepInput(const Conditions& conditions, const Shape& latent) : conditions_(conditions) {
  if (!conditions.channels && !conditions.given_frames) return;
  Shape shape = latent;
  if (conditions.channels) shape[1] += conditions.channels.extent(1);
  input_ = Tensor(DType::kF32, shape);
  if (conditions.channels && !own_channels())
    put(conditions.channels.view().select(0, 0), input_.view().select(0, 0), latent[1]);
}

TensorView StepInput::of(const TensorView& latents, int64_t video) const {
  if (!input_) return latents;
  put(latents.select(0, 0), input_.view().select(0, 0), 0);
  if (own_channels()) put(conditions_.channels.view().select(0, video), input_.view().select(0, 0), latents.extent(1));
  put_given_frames(conditions_, input_);
  return input_;
}

void put_given_frames(const Conditions& conditions, const TensorView& latents) {
  if (conditions.given_frames) put(conditions.given_frames.view().select(0, 0), latents.select(0, 0), 0);
}

void to_signed_unit(const TensorView& bytes, const TensorView& out) {
  ZT_CHECK(bytes.size() == out.size() && bytes.contiguous() && out.contiguous());
  const uint8_t* from = bytes.data<uint8_t>();
  std::transform(from, from + bytes.size(), out.data<float>(), signed_unit);
}

void masked_frame(const TensorView& frame, const TensorView& mask, MaskHalf half, const TensorView& out) {
  const bool reactive = half == MaskHalf::kReactive;
  for (int64_t i = 0; i < out.size(); ++i) {
    const float value = frame ? signed_unit(frame.data<uint8_t>()[i]) : 0.0f;
    const bool regenerate = !mask || unit(mask.data<uint8_t>()[i]) > 0.5f;
    out.data<float>()[i] = regenerate == reactive ? value : 0.0f;
  }
}

Tensor first_channel(const TensorView& mask) {
  Tensor channel = Tensor::uninitialized(DType::kF32, {1, 1, mask.extent(0), mask.extent(1), mask.extent(2)});
  float* to = channel.data<float>();
  for (int64_t f = 0; f < mask.extent(0); ++f) {
    const uint8_t* from = mask.select(0, f).data<uint8_t>();
    for (int64_t i = 0; i < mask.extent(1) * mask.extent(2); ++i) *to++ = unit(from[i * kColours]);
  }
  return channel;
}

void reference_canvas(const TensorView& picture, const TensorView& out) {
  const ImageSize size = fitted_size({picture.extent(0), picture.extent(1)}, {out.extent(0), out.extent(1)});
  const std::vector<Tap> rows = taps(picture.extent(0), size.height), columns = taps(picture.extent(1), size.width);
  std::fill_n(out.data<float>(), out.size(), 1.0f);
  const int64_t top = (out.extent(0) - size.height) / 2, left = (out.extent(1) - size.width) / 2;
  const auto row = [&](int64_t y) { return picture.data<uint8_t>() + y * picture.extent(1) * kColours; };
  for (int64_t y = 0; y < size.height; ++y) {
    const Tap& v = rows[static_cast<size_t>(y)];
    float* to = out.data<float>() + ((top + y) * out.extent(1) + left) * kColours;
    for (int64_t x = 0; x < size.width; ++x) {
      const Tap& u = columns[static_cast<size_t>(x)];
      for (int64_t c = 0; c < kColours; ++c) {
        const auto across = [&](int64_t line) {
          return (1.0f - u.weight) * signed_unit(row(line)[u.low * kColours + c]) +
                 u.weight * signed_unit(row(line)[u.high * kColours + c]);
        };
        *to++ = (1.0f - v.weight) * across(v.low) + v.weight * across(v.high);
      }
    }
  }
}

Tensor frame_mask(const Shape& latent, int64_t frames_per_latent, GivenEnds given) {
  Tensor mask(DType::kF32, {frames_per_latent, latent[0], latent[1], latent[2]});
  const int64_t cells = latent[1] * latent[2];
  const auto set = [&](int64_t channel, int64_t frame) {
    std::fill_n(mask.view().select(0, channel).select(0, frame).data<float>(), cells, 1.0f);
  };
  for (int64_t j = 0; j < frames_per_latent; ++j) set(j, 0);
  if (given == GivenEnds::kFirstAndLast) set(frames_per_latent - 1, latent[0] - 1);
  return mask;
}

Tensor joined_channels(const TensorView& a, const TensorView& b) {
  Tensor joined =
      Tensor::uninitialized(DType::kF32, {1, a.extent(0) + b.extent(0), a.extent(1), a.extent(2), a.extent(3)});
  put(a, joined.view().select(0, 0), 0);
  put(b, joined.view().select(0, 0), a.extent(0));
  return joined;
}

Tensor joined_frames(const TensorView& a, const TensorView& b) {
  Tensor joined(DType::kF32, {a.extent(0), a.extent(1) + b.extent(1), a.extent(2), a.extent(3)});
  Stream stream(1);
  copy(stream, joined.view().slice(1, 0, a.extent(1)), a);
  copy(stream, joined.view().slice(1, a.extent(1), joined.extent(1)), b);
  return joined;
}

Tensor segment_mask(const Shape& latent, const std::function<float(int64_t frame, int64_t y, int64_t x)>& known) {
  constexpr int64_t kFrames = 4;
  Tensor mask(DType::kF32, {kFrames, latent[0], latent[1], latent[2]});
  float* to = mask.data<float>();
  for (int64_t j = 0; j < kFrames; ++j)
    for (int64_t t = 0; t < latent[0]; ++t)
      for (int64_t y = 0; y < latent[1]; ++y)
        for (int64_t x = 0; x < latent[2]; ++x)
          *to++ = known(std::max<int64_t>(0, kFrames * t + j - (kFrames - 1)), y, x);
  return mask;
}

Tensor on_black(const TensorView& picture, ImageSize size) {
  const int64_t height = picture.extent(0), width = picture.extent(1);
  // As wide as the frame, or as high: by the shapes, so that neither is rounded.
  const bool narrower = size.width * height < width * size.height;
  const ImageSize fitted{narrower ? std::max<int64_t>(1, height * size.width / width) : size.height,
                         narrower ? size.width : std::max<int64_t>(1, width * size.height / height)};
  const Tensor resized = io::resize(picture, fitted, io::ResizeFilter::kLanczos);
  Tensor canvas(DType::kU8, {size.height, size.width, kColours});
  const int64_t top = size.height / 2 - fitted.height / 2, left = size.width / 2 - fitted.width / 2;
  for (int64_t y = 0; y < fitted.height; ++y) {
    std::memcpy(canvas.data<uint8_t>() + ((top + y) * size.width + left) * kColours,
                resized.data<uint8_t>() + y * fitted.width * kColours, static_cast<size_t>(fitted.width * kColours));
  }
  return canvas;
}

Tensor luminance(const TensorView& video) {
  Tensor grey = Tensor::uninitialized(DType::kU8, {video.extent(0), video.extent(1), video.extent(2), 1});
  const uint8_t* from = video.data<uint8_t>();
  for (int64_t i = 0; i < grey.size(); ++i, from += kColours) {
    // As Pillow: ITU-R 601-2 in 16 bits.
    grey.data<uint8_t>()[i] = static_cast<uint8_t>((19595 * from[0] + 38470 * from[1] + 7471 * from[2] + 32768) >> 16);
  }
  return grey;
}

Tensor mask_channels(const TensorView& mask, int64_t video_frames, const Shape& latent, int64_t cell,
                     int64_t references) {
  Tensor channels(DType::kF32, {cell * cell, references + latent[0], latent[1], latent[2]});
  const int64_t width = latent[2] * cell;
  const float stride = static_cast<float>(video_frames) / static_cast<float>(latent[0]);
  for (int64_t t = 0; t < latent[0]; ++t) {
    const auto frame = std::min(static_cast<int64_t>((static_cast<float>(t) + 0.5f) * stride), video_frames - 1);
    const uint8_t* pixels = mask ? mask.select(0, frame).data<uint8_t>() : nullptr;
    for (int64_t c = 0; c < cell * cell; ++c) {
      float* to = channels.view().select(0, c).select(0, references + t).data<float>();
      for (int64_t y = 0; y < latent[1]; ++y) {
        for (int64_t x = 0; x < latent[2]; ++x) {
          const int64_t pixel = (y * cell + c / cell) * width + x * cell + c % cell;
          *to++ = pixels != nullptr ? unit(pixels[pixel * kColours]) : 1.0f;
        }
      }
    }
  }
  return channels;
}

ImageSize size_of_area(ImageSize picture, int64_t area, int64_t unit_length) {
  const double ratio = static_cast<double>(picture.height) / static_cast<double>(picture.width);
  return {whole_units(std::sqrt(static_cast<double>(area) * ratio), unit_length),
          whole_units(std::sqrt(static_cast<double>(area) / ratio), unit_length)};
}

ImageSize control_size(ImageSize video, ImageSize frame, int64_t unit_length) {
  ImageSize size = video;
  if (video.height * video.width > frame.height * frame.width) size = fitted_size(video, frame);
  return {size.height / unit_length * unit_length, size.width / unit_length * unit_length};
}

ImageSize fitted_size(ImageSize picture, ImageSize canvas) {
  const auto ratio = [](int64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
  const double scale = std::min(ratio(canvas.height, picture.height), ratio(canvas.width, picture.width));
  const auto scaled = [&](int64_t length) {
    return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(length) * scale));
  };
  return {scaled(picture.height), scaled(picture.width)};
}

}  // namespace zoetrope::pipeline
