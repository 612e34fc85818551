// The weights of a component as the hub has them: one safetensors file, or several of limited size and their index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/atomic_folder.h"
#include "io/weights/safetensors.h"

namespace zoetrope::io {

class SafetensorsShards {
 public:
  using Entry = SafetensorsStream::Entry;
  static constexpr uint64_t kShardBytes = 5'000'000'000;  // as the published ones were cut

  // Files STEM.safetensors, or STEM-00001-of-00003.safetensors, in `folder` of `out`, each as full as it goes in the
  // order of `entries`, none of which is empty.
  SafetensorsShards(AtomicFolder& out, std::filesystem::path folder, std::string stem, std::vector<Entry> entries,
                    uint64_t shard_bytes = kShardBytes);
  SafetensorsShards(const SafetensorsShards&) = delete;
  SafetensorsShards& operator=(const SafetensorsShards&) = delete;

  std::vector<Entry> entries() const;        // as they are stored, and as write() expects them
  uint64_t bytes() const { return bytes_; }  // of all
  // Continues where the last call ended; of one tensor.
  void write(const void* data, size_t bytes);
  void finish();  // writes the index, if there is one; everything must have been written

 private:
  std::string file_name(size_t shard) const;

  AtomicFolder& out_;
  std::filesystem::path folder_;
  std::string stem_;
  std::vector<std::vector<Entry>> shards_;
  uint64_t bytes_ = 0;
  std::optional<SafetensorsStream> stream_;  // of the shard that is being written
  size_t shard_ = 0;
  uint64_t missing_ = 0;  // bytes of that shard
};

}  // namespace zoetrope::io
