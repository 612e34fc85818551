// Tile sizes that were searched for on this machine, remembered in a file of the user's cache folder:
//   $XDG_CACHE_HOME/zoetrope/tiles.json, else $HOME/.cache/zoetrope/tiles.json
// An entry holds for one CPU model, implementation, dtype, head dim and softmax, and a bucket of key counts. The search
// itself is tile_search.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/flash_attention/flash_attention.h"

namespace zoetrope::kernels {

struct TileKey {
  std::string cpu;
  std::string implementation;
  std::string blocks;  // its register block and the table's tiles: another build's may be others
  std::string dtype;
  int64_t head_dim = 0;
  std::string softmax;
  int64_t keys = 0;  // the bucket: the power of two nearest to the number of keys
  friend bool operator==(const TileKey&, const TileKey&) = default;
};

// Of a problem on this CPU, for the implementation that would compute it.
TileKey tile_key(const FlashProblem& problem);

struct TileEntry {
  TileKey key;
  TileSizes sizes;
  double gain = 1;  // time with the table's sizes over time with these, as it was measured
};

class TileCache {
 public:
  // Where entries are kept; empty where neither variable is set, and then nothing is found or remembered.
  static std::filesystem::path default_file();

  explicit TileCache(std::filesystem::path file) : file_(std::move(file)) {}

  const std::filesystem::path& file() const { return file_; }
  // All entries; none where the file does not exist. Throws Error, saying what to do, where it is broken.
  std::vector<TileEntry> entries() const;
  std::optional<TileEntry> find(const TileKey& key) const;
  // Adds or replaces, all or nothing. Makes the folder. Throws Error where that is not possible.
  void remember(const TileEntry& entry) const;

 private:
  std::filesystem::path file_;
};

// One thread of one process has it at a time, for the same file on one machine. Throws Error where the folder cannot be
// created or written.
class TileCacheLock {
 public:
  // `waiting` is called once where somebody else holds it ("process 1234"), before waiting for as long as that takes.
  explicit TileCacheLock(const TileCache& cache, const std::function<void(const std::string& holder)>& waiting = {});
  ~TileCacheLock();
  TileCacheLock(const TileCacheLock&) = delete;
  TileCacheLock& operator=(const TileCacheLock&) = delete;

 private:
  bool lock(const std::string& path, int operation) const;  // false: somebody else has it
  std::string holder() const;

  int descriptor_ = -1;
};

}  // namespace zoetrope::kernels
