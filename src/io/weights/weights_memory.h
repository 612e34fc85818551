// What a Weights keeps in memory: conversions, joins and buffers of packed weights. Only for Weights and WeightLoader.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zoetrope/tensor.h"

#include "io/weights/weight_buffer.h"
#include "io/weights/weight_stream.h"
#include "io/weights/weights.h"

namespace zoetrope::io {

// The outer lock is held for look-ups only, so that ranks convert different tensors at the same time, and those that
// want the same one wait for it.
struct Weights::Cache {
  struct Entry {
    std::mutex mutex;
    Tensor tensor;
  };
  using Key = std::pair<std::vector<std::string>, DType>;
  using PackedKey = std::pair<std::vector<std::string>, std::string>;

  Entry& entry(Key key) {
    const std::lock_guard lock(mutex);
    std::unique_ptr<Entry>& found = entries[std::move(key)];
    if (!found) found = std::make_unique<Entry>();
    return *found;
  }

  std::mutex mutex;
  std::map<Key, std::unique_ptr<Entry>> entries;
  size_t bytes = 0;     // under `mutex`
  bool mapped = false;  // under `mutex`: Weights::lie_in_cache()

  std::mutex loading;  // one WeightLoader at a time; guards what follows
  std::map<PackedKey, const std::byte*> packed;
  std::vector<std::unique_ptr<WeightBuffer>> buffers;  // that hold them
  struct Streamed {
    std::string file;
    WeightStream::Range mapping;
    std::shared_ptr<WeightStream::Storage> storage;
  };
  std::optional<Streamed> streamed;  // with Loading::memory or shards: what the last loader packed or will pack
};

}  // namespace zoetrope::io
