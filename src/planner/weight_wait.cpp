#include "planner/weight_wait.h"

#include <algorithm>
#include <numeric>

#include "base/index_range.h"

namespace zoetrope::planner {
namespace {

double seconds_of(double bytes, double rate) { return rate > 0 ? bytes / rate : 0; }

// Neighbours of a tensor coordinate that share weights; 1 where all ranks of a process have one copy.
int sharing_ranks(const Work& work, const parallel::ParallelLayout& layout) {
  return work.weights.ranks_here > 1 ? 1 : std::gcd(layout.weight_shards, layout.ranks() / layout.tensor);
}

WeightWait wait_for_gather(const Work& work, const HardwareProfile& hardware, const parallel::ParallelLayout& layout,
                           const Routes& routes, const LayerWalk& walk) {
  const int ranks = layout.ranks(), shards = sharing_ranks(work, layout);
  const int64_t layer = work.weights.part(layout.tensor).layer.count();
  std::vector<Routes::Group> groups(static_cast<size_t>(ranks / shards), {{}, ceil_div(layer, int64_t{shards})});
  for (int rank = 0; rank < ranks; ++rank) {
    const int group = rank / layout.tensor / shards * layout.tensor + layout.tensor_index(rank);
    groups[static_cast<size_t>(group)].devices.push_back(rank);
  }
  Wires wires(routes, static_cast<int>(hardware.links.size()), ranks);
  const std::vector<Arrival> arrivals = wires.gather(groups, std::vector<double>(static_cast<size_t>(ranks), 0.0));
  const auto layers = static_cast<double>(work.layers), forwards = static_cast<double>(work.forwards(layout.data));
  const double compute = walk.seconds() / forwards;
  WeightWait wait;
  double longest = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Arrival& arrival = arrivals[static_cast<size_t>(rank)];
    double exposed = 0;
    if (arrival.level >= 0) {
      const double links = arrival.end + walk.link_seconds(arrival.level, rank) / forwards;
      // A transfer meets weights for as much of the time as those take.
      const double busy = std::min(1.0, seconds_of(arrival.end, compute + arrival.slowdown));
      const auto piece = static_cast<double>(std::max<int64_t>(1, ceil_div(layer, int64_t{shards})));
      const double passing = arrival.end * std::min(1.0, static_cast<double>(kWeightsUnderWay) / piece);
      // Of a forward: the walk's is one over all samples, and where they are apart each has as many.
      const auto transfers = static_cast<double>(walk.exposed_transfers(arrival.level, rank));
      exposed = std::max({0.0, arrival.slowdown + transfers * busy * passing, links - compute});
    }
    if (exposed > longest) {
      longest = exposed;
      wait.level = hardware.links[static_cast<size_t>(arrival.level)].name;
    }
    wait.seconds.push_back(layers * forwards * exposed);
  }
  return wait;
}

WeightWait wait_for_files(const Work& work, const HardwareProfile& hardware, const parallel::ParallelLayout& layout,
                          const LayerWalk& walk) {
  const Work::LayerWeights& weights = work.weights;
  const Work::LayerWeights::Part part = weights.part(layout.tensor);
  const int here = std::min(layout.ranks(), std::max(1, hardware.devices_per_host));
  // Of a host: those of each process of each run, of which each tensor rank has one.
  const int together = weights.ranks_here > 0 ? std::min(weights.ranks_here, here) : here;
  const int streams = work.runs_of_host(layout.ranks(), hardware.devices_per_host) *
                      static_cast<int>(ceil_div(here, together)) * std::min(layout.tensor, together);
  const auto forwards = static_cast<double>(work.forwards(layout.data));
  const double compute = static_cast<double>(work.layers) * walk.seconds() / forwards;
  const auto bytes = static_cast<double>((part.read * part.fetched).count());
  const bool from_disk = hardware.disk_read > 0 && !weights.in_memory;
  // Every part once from the disk, and by each stream from the page cache.
  const double disk = from_disk ? std::min(layout.tensor, streams) * seconds_of(bytes, hardware.disk_read) : 0;
  const double reading = std::max(disk, streams * seconds_of(bytes, hardware.host_read));
  const auto packed = static_cast<double>((part.packed * part.fetched).count());
  const double packing = streams * seconds_of(packed, hardware.host_read);
  WeightWait wait;
  const double exposed = std::max({0.0, packing, reading - compute});
  wait.seconds.assign(static_cast<size_t>(layout.ranks()), forwards * exposed);
  if (exposed > packing && disk == reading) wait.level = "disk";
  return wait;
}

}  // namespace

WeightWait wait_for_weights(const Work& work, const HardwareProfile& hardware, const parallel::ParallelLayout& layout,
                            const Routes& routes, const LayerWalk& walk) {
  if (sharing_ranks(work, layout) > 1) return wait_for_gather(work, hardware, layout, routes, walk);
  if (work.weights.part(layout.tensor).fetched > 0) return wait_for_files(work, hardware, layout, walk);
  return {std::vector<double>(static_cast<size_t>(layout.ranks()), 0.0), {}};
}

}  // namespace zoetrope::planner
