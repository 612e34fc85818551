#include "kernels/flash_attention/tile_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/folders.h"
#include "base/input_file.h"
#include "kernels/cpu_features.h"
#include "kernels/flash_attention/tile_size.h"
#include "kernels/flash_attention/vector_kernels.h"

namespace zoetrope::kernels {
namespace {

constexpr int64_t kFormat = 2;

int64_t bucket(int64_t keys) {
  const auto n = static_cast<uint64_t>(std::max<int64_t>(keys, 1));
  const auto below = static_cast<int64_t>(std::bit_floor(n));
  // Nearest on a logarithmic scale: from √2 times the lower power on, the upper one.
  return static_cast<double>(keys) > 1.4142135623730951 * static_cast<double>(below) ? 2 * below : below;
}

const char* softmax_name(Softmax softmax) {
  switch (softmax) {
    case Softmax::kOnline:
      return "online";
    case Softmax::kExactOnline:
      return "exact_online";
    case Softmax::kFixedMax:
      return "fixed_max";
  }
  return "";
}

TileEntry parse_entry(const nlohmann::json& json) {
  TileEntry entry;
  entry.key.cpu = json.at("cpu").get<std::string>();
  entry.key.implementation = json.at("implementation").get<std::string>();
  entry.key.blocks = json.at("blocks").get<std::string>();
  entry.key.dtype = json.at("dtype").get<std::string>();
  entry.key.head_dim = json.at("head_dim").get<int64_t>();
  entry.key.softmax = json.at("softmax").get<std::string>();
  entry.key.keys = json.at("keys").get<int64_t>();
  entry.sizes = {json.at("block_q").get<int64_t>(), json.at("block_kv").get<int64_t>()};
  entry.gain = json.at("gain").get<double>();
  if (entry.sizes.query < 1 || entry.sizes.query > kMostTileRows || entry.sizes.keys < 1 ||
      entry.sizes.keys > kMostTileKeys) {
    fail("tiles of {} × {}, where 1 to {} × 1 to {} are possible", entry.sizes.query, entry.sizes.keys, kMostTileRows,
         kMostTileKeys);
  }
  return entry;
}

nlohmann::json to_json(const TileEntry& entry) {
  return {{"cpu", entry.key.cpu},           {"implementation", entry.key.implementation},
          {"blocks", entry.key.blocks},     {"dtype", entry.key.dtype},
          {"head_dim", entry.key.head_dim}, {"softmax", entry.key.softmax},
          {"keys", entry.key.keys},         {"block_q", entry.sizes.query},
          {"block_kv", entry.sizes.keys},   {"gain", entry.gain}};
}

void make_folder(const std::filesystem::path& file) {
  if (file.empty()) fail("tile sizes cannot be remembered: neither XDG_CACHE_HOME nor HOME names a folder");
  make_parent_folders(file);
}

}  // namespace

TileKey tile_key(const FlashProblem& problem) {
  const char* implementation = FlashAttention(problem).implementation();
  std::string blocks;
  if (const TileShape* shape = vector_shape(implementation)) {
    const TileShape table = with_tile_sizes(*shape, {});
    blocks = fmt::format("{}x{} {}x{}", shape->query_rows, shape->panel_keys, table.query_tile, table.key_tile);
  }
  return {cpu_model(),
          implementation,
          blocks,
          dtype_name(problem.dtype),
          problem.head_dim,
          softmax_name(problem.softmax),
          bucket(problem.key_tokens)};
}

std::filesystem::path TileCache::default_file() { return in_user_cache("tiles.json"); }

std::vector<TileEntry> TileCache::entries() const {
  std::vector<TileEntry> result;
  std::error_code error;
  if (file_.empty() || !std::filesystem::exists(file_, error)) return result;
  try {
    const nlohmann::json document = nlohmann::json::parse(read_file(file_, kMaxTextBytes, InputFile::Kind::kCache));
    if (document.at("format").get<int64_t>() != kFormat) return result;  // another version's, left alone until replaced
    for (const auto& entry : document.at("tiles")) result.push_back(parse_entry(entry));
  } catch (const std::exception& broken) {
    fail("{}: not a readable cache of tile sizes ({}); delete it, and `zoetrope tune` will make a new one",
         file_.string(), broken.what());
  }
  return result;
}

std::optional<TileEntry> TileCache::find(const TileKey& key) const {
  for (const TileEntry& entry : entries()) {
    if (entry.key == key) return entry;
  }
  return std::nullopt;
}

void TileCache::remember(const TileEntry& entry) const {
  make_folder(file_);
  std::vector<TileEntry> all = entries();
  std::erase_if(all, [&](const TileEntry& other) { return other.key == entry.key; });
  all.push_back(entry);
  nlohmann::json document = {{"format", kFormat}, {"tiles", nlohmann::json::array()}};
  for (const TileEntry& one : all) document["tiles"].push_back(to_json(one));
  write_file(file_, document.dump(1) + "\n");
}

TileCacheLock::TileCacheLock(const TileCache& cache, const std::function<void(const std::string& holder)>& waiting) {
  make_folder(cache.file());
  const std::string path = cache.file().string() + ".lock";
  descriptor_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("{}: cannot be opened: {}", path, std::strerror(errno));
  try {
    if (!lock(path, LOCK_EX | LOCK_NB)) {
      if (waiting) waiting(holder());
      lock(path, LOCK_EX);
    }
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  // For whoever waits: who holds it. Nothing depends on it, so a full disk is no matter.
  const std::string process = fmt::format("{}\n", ::getpid());
  if (::ftruncate(descriptor_, 0) == 0) {
    [[maybe_unused]] const ssize_t written = ::pwrite(descriptor_, process.data(), process.size(), 0);
  }
}

bool TileCacheLock::lock(const std::string& path, int operation) const {
  while (::flock(descriptor_, operation) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail("{}: cannot be locked: {}", path, std::strerror(errno));
  }
  return true;
}

std::string TileCacheLock::holder() const {
  char text[32] = {};
  const ssize_t count = ::pread(descriptor_, text, sizeof text - 1, 0);
  const long process = count > 0 ? std::strtol(text, nullptr, 10) : 0;
  return process > 0 ? fmt::format("process {}", process) : "another process";
}

TileCacheLock::~TileCacheLock() { ::close(descriptor_); }

}  // namespace zoetrope::kernels
