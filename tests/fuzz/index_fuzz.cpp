#include <cstring>

#include "io/weights/checkpoint.h"
#include "text_changes.h"

namespace zoetrope::fuzz {
namespace {

const char kIndex[] = R"({"metadata":{"total_size":8},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})";

std::string shard(const std::string& tensor) {
  const std::string header = R"({")" + tensor + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  const uint64_t length = header.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(4, '\0');
}

void read(const std::string& bytes) {
  static const bool shards =
      !write("one.safetensors", shard("a")).empty() && !write("two.safetensors", shard("b")).empty();
  if (!shards) return;
  write("model.safetensors.index.json", bytes);
  const io::Checkpoint checkpoint = io::Checkpoint::open(folder(), "model");
  for (const std::string& name : checkpoint.names()) touch(checkpoint.view(name).raw(), checkpoint.info(name).bytes);
  checkpoint.identity();
}

std::string change(const std::string& bytes, Dice& dice) { return changed_json(bytes, kIndex, dice); }

}  // namespace

const Target kTarget{read, change, {"not valid JSON", "but a JSON object {"}};

}  // namespace zoetrope::fuzz
