#include "io/weights/safetensors_shards.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "base/error.h"

namespace zoetrope::io {

SafetensorsShards::SafetensorsShards(AtomicFolder& out, std::filesystem::path folder, std::string stem,
                                     std::vector<Entry> entries, uint64_t shard_bytes)
    : out_(out), folder_(std::move(folder)), stem_(std::move(stem)), shards_(1) {
  uint64_t in_shard = 0;
  for (Entry& entry : entries) {
    const uint64_t size = entry.bytes();
    ZT_CHECK(size > 0, "{}", entry.name);
    if (!shards_.back().empty() && in_shard + size > shard_bytes) {
      shards_.emplace_back();
      in_shard = 0;
    }
    in_shard += size;
    bytes_ += size;
    shards_.back().push_back(std::move(entry));
  }
  for (std::vector<Entry>& shard : shards_) SafetensorsStream::sort_by_size(shard);
}

std::vector<SafetensorsShards::Entry> SafetensorsShards::entries() const {
  std::vector<Entry> all;
  for (const std::vector<Entry>& shard : shards_) all.insert(all.end(), shard.begin(), shard.end());
  return all;
}

std::string SafetensorsShards::file_name(size_t shard) const {
  if (shards_.size() == 1) return stem_ + ".safetensors";
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem_, shard + 1, shards_.size());
}

void SafetensorsShards::write(const void* data, size_t bytes) {
  if (!stream_) {
    ZT_CHECK(shard_ < shards_.size(), "{}: too many bytes", stem_);
    const std::map<std::string, std::string> metadata{{"format", "pt"}};  // other programs refuse files without it
    stream_.emplace(out_.file(folder_ / file_name(shard_)), shards_[shard_], metadata);
    missing_ = 0;
    for (const Entry& entry : shards_[shard_]) missing_ += entry.bytes();
  }
  stream_->write(data, bytes);
  missing_ -= bytes;
  if (missing_ > 0) return;
  stream_->commit();
  stream_.reset();
  ++shard_;
}

void SafetensorsShards::finish() {
  ZT_CHECK(shard_ == shards_.size(), "{}: {} of {} shards", stem_, shard_, shards_.size());
  if (shards_.size() == 1) return;
  std::string map;
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const Entry& entry : shards_[i])
      map += fmt::format("{}    \"{}\": \"{}\"", map.empty() ? "" : ",\n", entry.name, file_name(i));
  }
  out_.write(folder_ / (stem_ + ".safetensors.index.json"),
             fmt::format("{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{\n{}\n  }}\n}}\n",
                         bytes_, map));
}

}  // namespace zoetrope::io
