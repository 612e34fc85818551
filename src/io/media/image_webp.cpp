#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "base/error.h"
#include "io/media/image_codecs.h"

namespace zoetrope::io {
namespace {

struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

std::string exif_of(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk;
  std::string exif;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk) != 0) {
    exif.assign(reinterpret_cast<const char*>(chunk.chunk.bytes), chunk.chunk.size);
    WebPDemuxReleaseChunkIterator(&chunk);
  }
  return exif;
}

}  // namespace

StoredImage decode_webp(std::string_view file, const std::filesystem::path& path) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(file.data());
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes, file.size(), &features) != VP8_STATUS_OK) fail("{}: is a broken WebP", path.string());
  if (features.has_animation != 0) fail("{}: is an animation; save one picture of it", path.string());
  check_image_size(features.height, features.width, path);
  const WebPData data{bytes, file.size()};
  // Also finds what is cut off.
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemux(&data));
  StoredImage image{Tensor::uninitialized(DType::kU8, {features.height, features.width, 3}), {}};
  if (!demuxer || WebPDecodeRGBInto(bytes, file.size(), image.pixels.data<uint8_t>(), image.pixels.view().bytes(),
                                    3 * features.width) == nullptr) {
    fail("{}: is a broken WebP: its pixels are incomplete or damaged", path.string());
  }
  image.exif = exif_of(demuxer.get());
  image.transparent = features.has_alpha != 0;  // encoders leave out an alpha that is opaque
  return image;
}

}  // namespace zoetrope::io
