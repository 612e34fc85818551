#include "models/wan/lora/lora.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "io/safetensors.h"
#include "models/wan/lora/names.h"
#include "models/wan/lora/peft_metadata.h"

namespace zoetrope::wan {
namespace {

constexpr size_t kNamed = 20;    // groups of keys in a warning
constexpr size_t kExamples = 3;  // keys in a refusal
constexpr const char* kExpected =
    "names such as 'transformer.blocks.0.attn1.to_q.lora_A.weight', "
    "'diffusion_model.blocks.0.self_attn.q.lora_down.weight' or 'lora_unet_blocks_0_self_attn_q.lora_down.weight' are "
    "expected";
constexpr int64_t kPiece = 16384;  // values that are looked at in one go

// Keys of a module's parts; empty where it has none.
struct Module {
  std::string down, up, up_bias, alpha, whole, bias;

  std::string* of(LoraPart part) {
    switch (part) {
      case LoraPart::kDown:
        return &down;
      case LoraPart::kUp:
        return &up;
      case LoraPart::kUpBias:
        return &up_bias;
      case LoraPart::kAlpha:
        return &alpha;
      case LoraPart::kWhole:
        return &whole;
      case LoraPart::kBias:
        return &bias;
      default:
        return nullptr;
    }
  }
};

// Keys that differ in the number of a layer only, as one: "blocks.*.cross_attn.k_img.alpha (40 keys)".
std::string with_star(const std::string& key) {
  constexpr const char* kDigits = "0123456789";
  for (size_t at = key.find_first_of(kDigits); at != std::string::npos; at = key.find_first_of(kDigits, at)) {
    const size_t end = std::min(key.find_first_not_of(kDigits, at), key.size());
    const bool alone = at > 0 && (key[at - 1] == '.' || key[at - 1] == '_') && end < key.size() &&
                       (key[end] == '.' || key[end] == '_');
    if (alone) return key.substr(0, at) + "*" + key.substr(end);
    at = end;
  }
  return key;
}

std::string named(const std::vector<std::string>& keys) {
  std::map<std::string, std::vector<std::string>> groups;
  for (const std::string& key : keys) groups[with_star(key)].push_back(key);
  std::string text;
  size_t count = 0;
  for (const auto& [star, members] : groups) {
    if (count++ == kNamed) return text + fmt::format(" and {} more kinds", groups.size() - kNamed);
    const bool one = members.size() == 1;
    text += fmt::format("{}'{}'{}", text.empty() ? "" : ", ", one ? members.front() : star,
                        one ? "" : fmt::format(" ({} keys)", members.size()));
  }
  return text;
}

class Reader {
 public:
  Reader(const std::filesystem::path& path, double strength, const TensorList& tensors)
      : file_(io::SafetensorsFile::open(path)),
        source_(io::checkpoint_source(io::Checkpoint::of(file_))),
        names_(tensors),
        metadata_(file_->metadata(), path.string()),
        where_(path.string()) {
    for (const TensorSpec& spec : tensors) shapes_[spec.name] = spec.shape;
    lora_.file = path;
    lora_.strength = strength;
  }

  Lora run() {
    match_keys();
    for (const auto& [name, module] : modules_) read(name, module);
    if (lora_.deltas.empty()) refuse();
    if (!dropped_.empty()) {
      lora_.warnings.push_back(
          fmt::format("{}: the magnitudes of DoRA are not supported and left out, {} of {} keys: {}", where_,
                      dropped_.size(), file_->tensors().size(), named(dropped_)));
    }
    if (!unmatched_.empty()) {
      lora_.warnings.push_back(fmt::format("{}: {} of {} keys match no tensor of this model and are left out: {}",
                                           where_, unmatched_.size(), file_->tensors().size(), named(unmatched_)));
    }
    source_->require_unchanged();
    lora_.tensors = static_cast<int64_t>(lora_.deltas.size());
    if (lora_.strength == 0) lora_.deltas.clear();
    return std::move(lora_);
  }

 private:
  void match_keys() {
    for (const auto& item : file_->tensors()) {
      const std::string& key = item.first;
      const std::optional<LoraKey> found = names_.find(key);
      if (!found) {
        unmatched_.push_back(key);
        continue;
      }
      if (found->part == LoraPart::kDropped) {
        dropped_.push_back(key);
        continue;
      }
      std::string& place = *modules_[found->module].of(found->part);
      if (!place.empty()) fail("{}: '{}' and '{}' are the same change of '{}'", where_, place, key, found->module);
      place = key;
    }
  }

  // No key is of this model.
  [[noreturn]] void refuse() const {
    if (file_->tensors().empty()) fail("{}: holds no tensors, and so no LoRA", where_);
    std::vector<std::string> some;
    for (const auto& item : file_->tensors()) {
      if (some.size() < kExamples) some.push_back("'" + item.first + "'");
    }
    fail(
        "{}: is a LoRA of another model, or none: not one of its {} keys names a change of a tensor of this one ({}); "
        "{}",
        where_, file_->tensors().size(), fmt::join(some, ", "), kExpected);
  }

  void read(const std::string& name, const Module& module) {
    double scale = 1;
    if (!module.down.empty() || !module.up.empty()) {
      scale = add_product(name, module);
    } else if (!module.up_bias.empty()) {
      fail("{}: '{}' stands without the lora_A and lora_B that it belongs to", where_, module.up_bias);
    } else if (!module.alpha.empty()) {
      unmatched_.push_back(module.alpha);  // of nothing
    }
    if (!module.whole.empty()) add_whole(names_.weight(name), module.whole, 1);
    if (!module.up_bias.empty()) add_whole(names_.bias(name), module.up_bias, scale);
    if (!module.bias.empty()) add_whole(names_.bias(name), module.bias, 1);
  }

  // Returns alpha / rank.
  double add_product(const std::string& name, const Module& module) {
    if (module.down.empty() || module.up.empty()) {
      fail("{}: '{}' stands without its other half; lora_A and lora_B (lora_down and lora_up) come in pairs", where_,
           module.down.empty() ? module.up : module.down);
    }
    const std::string target = names_.weight(name);
    const Shape& shape = shapes_.at(target);
    const io::TensorInfo &down = file_->info(module.down), &up = file_->info(module.up);
    const int64_t rank = down.shape.rank() == 0 ? 0 : down.shape[0], rows = shape[0], columns = shape.size() / rows;
    const auto halves = [&] {
      return fmt::format("{}: '{}' {} and '{}' {}", where_, module.up, up.shape.to_string(), module.down,
                         down.shape.to_string());
    };
    if (rank < 1 || up.shape.rank() < 2 || up.shape.size() != up.shape[0] * rank) {
      fail("{} differ in rank; they must be [out, rank] and [rank, in]", halves());
    }
    if (up.shape[0] != rows || down.shape.size() != rank * columns) {
      fail("{} make no change of '{}' {}; is it a LoRA of a model of another size or with other inputs?", halves(),
           target, shape.to_string());
    }
    check_values(module.down);
    check_values(module.up);
    const double scale =
        module.alpha.empty() ? metadata_.scale(name, rank) : number(module.alpha) / static_cast<double>(rank);
    lora_.deltas[target].push_back({source_, module.up, module.down, "", lora_.strength * scale});
    lora_.least_rank = lora_.least_rank == 0 ? rank : std::min(lora_.least_rank, rank);
    lora_.largest_rank = std::max(lora_.largest_rank, rank);
    lora_.scratch_elements = std::max(lora_.scratch_elements, io::merge_scratch_elements(rows, columns, rank));
    return scale;
  }

  void add_whole(const std::string& target, const std::string& key, double scale) {
    const Shape& shape = shapes_.at(target);
    const Shape& found = file_->info(key).shape;
    if (found.size() != shape.size() || (found.rank() == shape.rank() && !(found == shape))) {
      fail("{}: '{}' {} is no change of '{}' {}; is it a LoRA of a model of another size or with other inputs?", where_,
           key, found.to_string(), target, shape.to_string());
    }
    check_values(key);
    lora_.deltas[target].push_back({source_, "", "", key, lora_.strength * scale});
  }

  double number(const std::string& key) const {
    if (file_->info(key).shape.size() != 1) {
      fail("{}: '{}' {} must be a single number", where_, key, file_->info(key).shape.to_string());
    }
    check_values(key);
    float value = 0;
    source_->read_range(key, {0, 1}, TensorView(&value, DType::kF32, {1}));
    return value;
  }

  void check_values(const std::string& key) const {
    const io::TensorInfo& info = file_->info(key);
    const bool is_float = info.dtype == DType::kF32 || info.dtype == DType::kBF16 || info.dtype == DType::kF16 ||
                          info.dtype == DType::kF64;
    if (!is_float) fail("{}: '{}' is stored as {}, but F32, BF16, F16 or F64 is needed", where_, key, info.dtype_name);
    std::vector<float> piece(static_cast<size_t>(std::min(kPiece, info.shape.size())));
    for (int64_t begin = 0; begin < info.shape.size(); begin += kPiece) {
      const int64_t count = std::min(kPiece, info.shape.size() - begin);
      source_->read_range(key, {begin, begin + count}, TensorView(piece.data(), DType::kF32, {count}));
      const auto end = piece.begin() + count;
      const auto bad = std::find_if(piece.begin(), end, [](float value) { return !std::isfinite(value); });
      if (bad == end) continue;
      fail("{}: '{}' holds {} at element {}; the file is damaged, or its training went wrong", where_, key, *bad,
           begin + (bad - piece.begin()));
    }
    source_->release(key);
  }

  std::shared_ptr<const io::SafetensorsFile> file_;
  std::shared_ptr<const io::WeightSource> source_;
  LoraNames names_;
  PeftMetadata metadata_;
  std::string where_;
  std::map<std::string, Shape> shapes_;
  std::map<std::string, Module> modules_;
  std::vector<std::string> unmatched_, dropped_;
  Lora lora_;
};

}  // namespace

Lora open_lora(const std::filesystem::path& file, double strength, const TensorList& tensors) {
  return Reader(file, strength, tensors).run();
}

void append(io::WeightDeltas& to, const io::WeightDeltas& more) {
  for (const auto& [name, changes] : more) {
    std::vector<io::WeightDelta>& mine = to[name];
    mine.insert(mine.end(), changes.begin(), changes.end());
  }
}

}  // namespace zoetrope::wan
