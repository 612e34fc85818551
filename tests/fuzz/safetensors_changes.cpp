#include "safetensors_changes.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "text_changes.h"

namespace zoetrope::fuzz {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMostData = size_t{1} << 16;
const char kSmallest[] = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

// Where the last tensor ends; nothing that a file of this size could hold: `fallback`.
size_t described_bytes(const std::string& header, size_t fallback) {
  const auto root = nlohmann::json::parse(header, nullptr, false);
  if (!root.is_object()) return fallback;
  uint64_t end = 0;
  for (const auto& entry : root) {
    if (!entry.is_object() || !entry.contains("data_offsets")) continue;
    const auto& offsets = entry["data_offsets"];
    if (offsets.is_array() && offsets.size() == 2 && offsets[1].is_number_unsigned()) {
      end = std::max(end, offsets[1].get<uint64_t>());
    }
  }
  return end <= kMostData ? end : fallback;
}

}  // namespace

std::string changed_safetensors(const std::string& bytes, Dice& dice) {
  uint64_t length = 0;
  std::string header = kSmallest, data;
  if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
  if (bytes.size() >= kLengthBytes && length <= bytes.size() - kLengthBytes) {
    header = bytes.substr(kLengthBytes, length);
    data = bytes.substr(kLengthBytes + length);
  }
  if (dice.one_in(8)) data = dice.changed(data);
  else header = changed_json(header, kSmallest, dice);
  if (!dice.one_in(4)) data.resize(described_bytes(header, data.size()));
  length = header.size();
  if (dice.one_in(64)) length = dice.pick<uint64_t>({0, length + data.size(), length + 1, UINT64_MAX, UINT64_MAX - 7});
  std::string changed(kLengthBytes, '\0');
  std::memcpy(changed.data(), &length, kLengthBytes);
  return changed + header + data;
}

}  // namespace zoetrope::fuzz
