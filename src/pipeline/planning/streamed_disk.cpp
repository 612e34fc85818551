#include "pipeline/planning/streamed_disk.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "machine/disk.h"
#include "machine/first_use.h"
#include "pipeline/model_files/weight_cache_name.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

double measured_once(const fs::path& file) {
  static std::mutex mutex;
  static std::map<std::string, double> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(file.string());
  if (found != known.end()) return found->second;
  return known[file.string()] = machine::disk_bandwidth(file);
}

// FOLDER/NAME-HASH.weights, as io::WeightCache names them.
std::vector<fs::path> cached_files(const ModelFolder& model, const std::string& weight_cache) {
  std::vector<fs::path> files;
  for (int expert = 0; expert < static_cast<int>(model.experts.size()); ++expert) {
    const std::string name = weight_cache_name(model, expert) + "-";
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(weight_cache, ignored)) {
      const fs::path& file = entry.path();
      if (file.filename().string().starts_with(name) && file.extension() == ".weights") files.push_back(file);
    }
  }
  return files;
}

}  // namespace

std::vector<fs::path> streamed_files(const ModelFolder& model, const std::string& weight_cache) {
  std::vector<fs::path> files;
  if (!weight_cache.empty()) files = cached_files(model, weight_cache);
  if (!files.empty()) return files;
  for (const Expert& expert : model.experts) {
    if (const io::Checkpoint* checkpoint = expert.weights.checkpoint())
      for (const auto& file : checkpoint->files()) files.push_back(file->path());
  }
  return files;
}

StreamedDisk streamed_disk(const std::vector<fs::path>& files, planner::Bytes room) {
  constexpr double kMostly = 0.95;
  StreamedDisk disk;
  planner::Bytes all;
  double resident = 0;
  const fs::path* largest = nullptr;
  uintmax_t most = 0;
  for (const fs::path& file : files) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(file, error);
    if (error) continue;
    all += planner::Bytes(static_cast<int64_t>(bytes));
    resident += machine::resident_share(file) * static_cast<double>(bytes);
    if (largest == nullptr || bytes > most) {
      largest = &file;
      most = bytes;
    }
  }
  if (most == 0) return disk;
  disk.in_memory = all <= room && resident >= kMostly * static_cast<double>(all.count());
  if (disk.in_memory) {
    disk.note = "the files that weights are read from as it computes are in the page cache";
  } else if (machine::may_measure()) {
    disk.bytes_per_second = measured_once(*largest);
    if (disk.bytes_per_second > 0) {
      disk.note = fmt::format("the disk that weights are read from as it computes reads {:.2f} GB/s",
                              disk.bytes_per_second * 1e-9);
    }
  }
  return disk;
}

}  // namespace zoetrope::pipeline
