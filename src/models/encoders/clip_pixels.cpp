#include "models/encoders/clip_pixels.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "io/media/image.h"

namespace zoetrope::encoders {
namespace {

// The size of the picture after resizing, before it is cropped. The long edge is rounded down.
io::ImageSize resized_size(const ImageProcessorConfig& config, io::ImageSize own) {
  if (config.size) return {config.size->height, config.size->width};
  if (!config.shortest_edge) return own;
  const int64_t edge = *config.shortest_edge;
  if (own.width <= own.height) return {edge * own.height / own.width, edge};
  return {edge, edge * own.width / own.height};
}

// The crop's first row or column in the picture; negative where the picture is smaller.
int64_t crop_begin(int64_t extent, int64_t crop) {
  return extent >= crop ? (extent - crop) / 2 : -((crop - extent + 1) / 2);
}

// The value of each level of one channel: scaled in double, normalised in float32, each rounded on its own.
std::array<float, 256> levels(const ImageProcessorConfig& config, size_t channel) {
  std::array<float, 256> values{};
  for (size_t level = 0; level < values.size(); ++level) {
    float value = static_cast<float>(level);
    if (config.rescale) value = static_cast<float>(static_cast<double>(level) * *config.rescale);
    if (config.normalize) value = (value - config.mean[channel]) / config.std[channel];
    values[level] = value;
  }
  return values;
}

}  // namespace

void clip_pixels(const ImageProcessorConfig& config, const TensorView& image, const TensorView& out) {
  ZT_CHECK(image.rank() == 3 && image.dtype() == DType::kU8 && image.extent(2) == 3);
  ZT_CHECK(out.rank() == 3 && out.dtype() == DType::kF32 && out.contiguous() && out.extent(0) == 3);
  const io::ImageSize size = resized_size(config, {image.extent(0), image.extent(1)});
  if (size.height > io::kMaxImagePixels / size.width) {
    fail("a picture of {} x {} would be resized to {} x {} for the image encoder, more than {} pixels; crop it",
         image.extent(1), image.extent(0), size.width, size.height, io::kMaxImagePixels);
  }
  const auto filter = config.lanczos ? io::ResizeFilter::kLanczos : io::ResizeFilter::kBicubic;
  const Tensor resized = io::resize(image, size, filter);
  const int64_t height = config.crop ? config.crop->height : size.height;
  const int64_t width = config.crop ? config.crop->width : size.width;
  if (out.extent(1) != height || out.extent(2) != width) {
    fail(
        "the image processor makes pictures of {} x {}, but the image encoder takes {} x {}; their configs do not "
        "belong together",
        width, height, out.extent(2), out.extent(1));
  }
  const int64_t top = crop_begin(size.height, height), left = crop_begin(size.width, width);
  float* to = out.data<float>();
  for (int64_t c = 0; c < 3; ++c) {
    const std::array<float, 256> value = levels(config, static_cast<size_t>(c));
    for (int64_t y = top; y < top + height; ++y) {
      for (int64_t x = left; x < left + width; ++x) {
        const bool inside = y >= 0 && y < size.height && x >= 0 && x < size.width;
        *to++ = value[inside ? resized.data<uint8_t>()[(y * size.width + x) * 3 + c] : 0];
      }
    }
  }
}

}  // namespace zoetrope::encoders
