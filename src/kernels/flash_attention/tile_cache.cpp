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
#include "base/json.h"
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

TileEntry parse_entry(const JsonObject& json) {
  TileEntry entry;
  for (const auto& [key, field] :
       {std::pair("cpu", &TileKey::cpu), std::pair("implementation", &TileKey::implementation),
        std::pair("blocks", &TileKey::blocks), std::pair("dtype", &TileKey::dtype),
        std::pair("softmax", &TileKey::softmax)})
    entry.key.*field = json.get<std::string>(key);
  entry.key.head_dim = json.get<int64_t>("head_dim");
  entry.key.keys = json.get<int64_t>("keys");
  entry.sizes = {json.get_between<int64_t>("block_q", 1, kMostTileRows),
                 json.get_between<int64_t>("block_kv", 1, kMostTileKeys)};
  entry.gain = json.get<double>("gain");
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
  if (file_.empty() || !is_there(file_)) return result;
  try {
    const std::string text = read_file(file_, kMaxTextBytes, InputFile::Kind::kCache);
    const JsonObject document = JsonObject::parse(text, file_.string());
    if (document.get<int64_t>("format") != kFormat) return result;  // another version's, left alone until replaced
    for (const JsonObject& entry : document.objects("tiles")) result.push_back(parse_entry(entry));
  } catch (const Error& broken) {
    fail("{}; this is not a readable cache of tile sizes: delete it, and `zoetrope tune` will make a new one",
         broken.what());
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
  write_file(file_, json_text(document, 1) + "\n");
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
