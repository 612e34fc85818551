#include "kernels/flash_attention/tile_cache.h"
#include "text_changes.h"

namespace zoetrope::fuzz {
namespace {

void read(const std::string& bytes) {
  const kernels::TileCache cache(write("tiles.json", bytes));
  const std::vector<kernels::TileEntry> entries = cache.entries();
  if (!entries.empty()) cache.find(entries.front().key);
}

std::string change(const std::string& bytes, Dice& dice) {
  return changed_json(bytes, R"({"format": 2, "tiles": []})", dice);
}

}  // namespace

const Target kTarget{read, change, {"parse_error", "not valid JSON"}};

}  // namespace zoetrope::fuzz
