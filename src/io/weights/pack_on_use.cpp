#include "io/weights/pack_on_use.h"

#include <algorithm>
#include <cstdint>

#include "io/weights/packing_threads.h"

namespace zoetrope::io {
namespace {

// Of a weight's tensors: pages of the map, or a copy.
size_t reading_bytes_of(const WeightSource& source, const PackedWeight& weight) {
  constexpr size_t kMostPerElement = 2;  // of quantised tensors, and of others that are read in parts
  size_t bytes = 0;
  for (const std::string& name : weight.names) {
    const TensorInfo info = source.info(name);
    const bool in_parts = !source.mapped(name) && source.reads_parts(name);
    bytes += in_parts ? static_cast<size_t>(info.shape.size()) * kMostPerElement : static_cast<size_t>(info.bytes);
  }
  return bytes;
}

}  // namespace

PackOnUse::PackOnUse(std::shared_ptr<const WeightSource> source, std::vector<Weight> weights, int threads)
    : source_(std::move(source)), threads_(threads) {
  for (Weight& weight : weights) weights_.emplace(weight.second, std::move(weight));
}

std::vector<const PackOnUse::Weight*> PackOnUse::weights_of(const WeightStream::Range& range) const {
  std::vector<const Weight*> found;
  for (auto at = weights_.lower_bound(range.begin); at != weights_.end() && at->first < range.begin + range.bytes; ++at)
    found.push_back(&at->second);
  return found;
}

// Threads work on one weight, and begin with the next.
size_t PackOnUse::reading_bytes(const std::vector<WeightStream::Part>& parts) const {
  size_t largest = 0;
  for (const WeightStream::Part& part : parts)
    for (const WeightStream::Range& range : part.ranges)
      for (const Weight* weight : weights_of(range))
        largest = std::max(largest, reading_bytes_of(*source_, weight->first));
  return 2 * largest;
}

void PackOnUse::read(std::span<const WeightStream::Range> ranges) {
  std::vector<PackingThreads::Job> jobs;
  for (const WeightStream::Range& range : ranges) {
    for (const Weight* weight : weights_of(range)) {
      int64_t stored = 0;
      for (const std::string& name : weight->first.names) stored += static_cast<int64_t>(source_->info(name).bytes);
      jobs.push_back({&weight->first, weight->second, stored});
    }
  }
  const size_t count = jobs.size();
  PackingThreads threads(*source_, std::move(jobs), {}, 0);  // one tensor that is read as a whole at a time
  threads.start(threads_);
  for (size_t i = 0; i < count; ++i) static_cast<void>(threads.take());
  source_->require_unchanged();
}

void PackOnUse::release(const WeightStream::Range& range) { release_whole_pages(range); }

}  // namespace zoetrope::io
