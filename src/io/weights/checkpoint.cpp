#include "io/weights/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "base/json.h"

namespace zoetrope::io {

namespace {

namespace fs = std::filesystem;

fs::path single_file(const fs::path& folder, const std::string& stem) { return folder / (stem + ".safetensors"); }
fs::path index_file(const fs::path& folder, const std::string& stem) {
  return folder / (stem + ".safetensors.index.json");
}

// A shard is named by its file name alone or a path below the folder. Links may lead elsewhere: the hub's own cache
// consists of links.
void check_shard_name(const fs::path& index, const std::string& name) {
  const fs::path path(name);
  const bool climbs = std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
  if (name.empty() || path.is_absolute() || climbs) {
    fail("{}: shard name '{}' leads out of the folder; shards must lie beside their index", index.string(), name);
  }
}

// The longest common beginning decides: a wrong ending ("…to_q.wieght") or layer number is the usual mistake.
std::string nearest(const std::vector<std::string>& names, const std::string& wanted) {
  const std::string* best = nullptr;
  size_t best_length = 0;
  for (const std::string& name : names) {
    const auto common = std::mismatch(name.begin(), name.end(), wanted.begin(), wanted.end()).first - name.begin();
    if (best == nullptr || static_cast<size_t>(common) > best_length) {
      best = &name;
      best_length = static_cast<size_t>(common);
    }
  }
  return best == nullptr ? std::string("there are none") : fmt::format("the nearest name is '{}'", *best);
}

}  // namespace

bool Checkpoint::exists(const fs::path& folder, const std::string& stem) {
  return is_there(index_file(folder, stem)) || is_there(single_file(folder, stem));
}

void Checkpoint::refuse_shards_alone(const fs::path& folder, const std::string& stem) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(stem + "-") || !name.ends_with(".safetensors")) continue;
    fail("{}: holds shards ({}), but no {} that can be read, which says what is in which; download it too",
         folder.string(), name, index_file(folder, stem).filename().string());
  }
}

Checkpoint Checkpoint::open(const fs::path& folder, const std::string& stem) {
  const fs::path index = index_file(folder, stem), single = single_file(folder, stem);
  if (!is_there(index)) {
    if (is_there(single)) return open_file(single);
    if (!is_there(folder)) fail("{}: no such folder of weights", folder.string());
    refuse_shards_alone(folder, stem);
    fail("{}: holds no weights; {} or {} must be there", folder.string(), single.filename().string(),
         index.filename().string());
  }

  const JsonObject weight_map = JsonObject::load(index).object("weight_map");
  auto contents = std::make_shared<Contents>();
  contents->folder = folder;
  contents->index = index;
  std::map<std::string, const TensorFile*> shards;
  for (const std::string& name : weight_map.keys()) {
    const auto shard = weight_map.get<std::string>(name);
    auto [opened, is_new] = shards.try_emplace(shard, nullptr);
    if (is_new) {
      check_shard_name(index, shard);
      if (!is_there(folder / shard)) fail("{}: shard '{}' is missing in the folder", index.string(), shard);
      contents->files.push_back(TensorFile::open(folder / shard));
      opened->second = contents->files.back().get();
    }
    if (!opened->second->contains(name)) {
      fail("{}: places tensor '{}' in shard '{}', which does not hold it", index.string(), name, shard);
    }
    contents->tensors[name] = opened->second;
  }
  return Checkpoint(std::move(contents));
}

Checkpoint Checkpoint::open_file(const fs::path& file) { return of(TensorFile::open(file)); }

Checkpoint Checkpoint::of(std::shared_ptr<const TensorFile> file) {
  auto contents = std::make_shared<Contents>();
  contents->folder = file->path().has_parent_path() ? file->path().parent_path() : fs::path(".");
  contents->files.push_back(std::move(file));
  const TensorFile* only = contents->files.front().get();
  for (const auto& item : only->tensors()) contents->tensors[item.first] = only;
  return Checkpoint(std::move(contents));
}

bool Checkpoint::contains(const std::string& name) const { return contents_->tensors.count(name) != 0; }

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  for (const auto& item : contents_->tensors) names.push_back(item.first);
  return names;
}

const TensorFile& Checkpoint::holder(const std::string& name) const {
  const auto found = contents_->tensors.find(name);
  if (found == contents_->tensors.end()) {
    fail("{}: tensor '{}' is missing among {} ({})", place().string(), name, contents_->tensors.size(),
         nearest(names(), name));
  }
  return *found->second;
}

const TensorInfo& Checkpoint::info(const std::string& name) const { return holder(name).info(name); }
TensorView Checkpoint::view(const std::string& name) const { return holder(name).tensor(name); }
const fs::path& Checkpoint::file(const std::string& name) const { return holder(name).path(); }
void Checkpoint::will_need(const std::string& name) const { holder(name).will_need(name); }
void Checkpoint::release(const std::string& name) const { holder(name).release(name); }

void Checkpoint::require_unchanged() const {
  for (const auto& file : contents_->files) file->require_unchanged();
}

std::string Checkpoint::identity() const {
  std::string lines;
  for (const auto& file : contents_->files) lines += file->identity() + "\n";
  return lines;
}

uint64_t Checkpoint::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, file] : contents_->tensors) bytes += file->info(name).bytes;
  return bytes;
}

std::map<std::string, DTypeCount> Checkpoint::dtypes() const {
  std::map<std::string, DTypeCount> counts;
  for (const auto& [name, file] : contents_->tensors) {
    const TensorInfo& info = file->info(name);
    DTypeCount& count = counts[info.dtype_name];
    count.tensors += 1;
    count.elements += info.shape.size();
    count.bytes += info.bytes;
  }
  return counts;
}

void require_unquantized(const JsonObject& config) {
  if (!config.has("quantization_config")) return;
  const std::string method =
      config.raw().at("quantization_config").is_object()
          ? config.object("quantization_config").get<std::string>("quant_method", std::string("unnamed"))
          : json_text(config.raw().at("quantization_config"));
  fail("{}: quantization_config ({}) is not supported; use a folder whose weights are F32, BF16 or F16", config.where(),
       method);
}

}  // namespace zoetrope::io
