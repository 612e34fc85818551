#include "planner/calibrated.h"

#include <algorithm>
#include <cmath>

#include "base/available_cores.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/words.h"

namespace zoetrope::planner {
namespace {

std::string shape_text(int hosts, int ranks, int threads) {
  return fmt::format("{} of {} on {}", counted(ranks, "rank"), counted(threads, "thread"), counted(hosts, "host"));
}

// How the ranks of a host share its cores when all are busy.
struct Sharing {
  int ranks, threads, cores;
  double cores_a_rank() const { return std::min(1.0 * ranks * threads, 1.0 * cores) / ranks; }
  double cores_a_thread() const { return std::min(1.0, 1.0 * cores / (1.0 * ranks * threads)); }
  double copying() const { return std::min(ranks, cores); }  // a rank copies on one thread
};

Sharing sharing_of(const HardwareProfile& profile, int cores) {
  const int ranks = std::max(1, profile.devices_per_host);
  if (!profile.calibration) return {ranks, 1, ranks};
  return {ranks, std::max(1, profile.calibration->threads), cores};
}

// The level that joins the ranks of a host. Added, with the bandwidth of the host's memory, if there was one rank per
// host and so nothing to measure.
LinkLevel& host_level(HardwareProfile& profile) {
  if (profile.links.empty() || profile.links[0].name != kHostLevel) {
    LinkLevel level;
    level.name = kHostLevel;
    level.kind = LinkKind::kBus;
    level.bandwidth = profile.memory_bandwidth * profile.devices_per_host / 2;  // a byte is read and written
    level.overlap = 0;
    profile.links.insert(profile.links.begin(), level);
  }
  return profile.links[0];
}

}  // namespace

std::filesystem::path calibrated_profile_path() { return in_user_cache("hardware.yml"); }

std::filesystem::path calibrated_profile_path(int hosts, int ranks_per_host) {
  return in_user_cache(fmt::format("hardware-{}x{}.yml", hosts, ranks_per_host));
}

std::vector<std::string> profile_mismatches(const HardwareProfile& profile, const JobShape& job) {
  std::vector<std::string> reasons;
  if (!profile.calibration) return reasons;
  const HardwareProfile::Calibration& then = *profile.calibration;
  if (then.cpu != job.cpu)
    reasons.push_back(fmt::format("it was measured on '{}', but this is '{}'", then.cpu, job.cpu));
  if (then.hosts != job.hosts) {
    reasons.push_back(fmt::format("it was measured by {}, but this job has {}: the figures between hosts may differ",
                                  shape_text(then.hosts, then.ranks, then.threads),
                                  shape_text(job.hosts, job.ranks, job.threads)));
  } else if (then.ranks != job.ranks || then.threads != job.threads) {
    reasons.push_back(fmt::format("it was measured by {}, but this job has {}: the host's figures are rescaled",
                                  shape_text(then.hosts, then.ranks, then.threads),
                                  shape_text(job.hosts, job.ranks, job.threads)));
  }
  return reasons;
}

HardwareProfile for_ranks(const HardwareProfile& profile, int ranks_per_host, int threads, int cores) {
  ZT_CHECK(ranks_per_host >= 1 && threads >= 1, "{} ranks of {} threads", ranks_per_host, threads);
  if (cores <= 0) cores = available_threads();
  const Sharing before = sharing_of(profile, cores);
  const Sharing now{ranks_per_host, threads, cores};
  const double share = now.cores_a_rank() / before.cores_a_rank();
  HardwareProfile scaled = profile;
  const int hosts = std::max(1, profile.devices / before.ranks);
  for (ComputeFigures* compute : {&scaled.bf16, &scaled.float32}) compute->peak *= share;
  scaled.token_seconds /= share;
  scaled.layer_overhead *= before.cores_a_thread() / now.cores_a_thread();
  scaled.memory_bandwidth *= share;
  scaled.device_memory = profile.calibration ? profile.device_memory * before.ranks / now.ranks
                                             : Bytes(std::llround(profile.device_memory.count() * share));
  scaled.devices = hosts * now.ranks;
  if (now.ranks > 1 || (!profile.links.empty() && profile.links[0].name == kHostLevel)) {
    LinkLevel& level = host_level(scaled);
    level.members = now.ranks;
    // On one medium more copying ranks get more bandwidth, up to that of the host's memory; fewer get less.
    const double most = std::max(level.bandwidth, scaled.memory_bandwidth * now.ranks / 2);
    level.bandwidth = std::min(most, level.bandwidth * now.copying() / before.copying());
  }
  scaled.devices_per_host = now.ranks;
  return scaled;
}

}  // namespace zoetrope::planner
