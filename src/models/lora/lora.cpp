#include "models/lora/lora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "io/weights/tensor_file.h"
#include "models/lora/names.h"
#include "models/lora/peft_metadata.h"

namespace zoetrope::lora {
namespace {

constexpr size_t kNamed = 20;    // groups of keys in a warning
constexpr size_t kExamples = 3;  // keys in a refusal
constexpr const char* kExpected =
    "names such as 'transformer.blocks.0.attn1.to_q.lora_A.weight', "
    "'diffusion_model.blocks.0.self_attn.q.lora_down.weight' or 'lora_unet_blocks_0_self_attn_q.lora_down.weight' are "
    "expected";
constexpr int64_t kPiece = 16384;  // values that are looked at in one go

// What loaders of diffusers and PEFT take from a folder.
std::filesystem::path file_in(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return path;
  for (const char* name : {"pytorch_lora_weights.safetensors", kFileOfPeft})
    if (is_there(path / name)) return path / name;
  fail("{}: is a folder with neither pytorch_lora_weights.safetensors nor {}; name the LoRA's file", path.string(),
       kFileOfPeft);
}

// Keys of a module's parts; empty where it has none.
class Module {
 public:
  std::string& operator[](LoraPart part) { return keys_.at(static_cast<size_t>(part)); }
  const std::string& operator[](LoraPart part) const { return keys_.at(static_cast<size_t>(part)); }
  bool any(std::initializer_list<LoraPart> parts) const {
    return std::any_of(parts.begin(), parts.end(), [&](LoraPart part) { return !(*this)[part].empty(); });
  }

 private:
  std::array<std::string, kLoraParts> keys_;
};

// Groups keys that differ only in the number of a layer: "blocks.*.cross_attn.k_img.alpha (40 keys)".
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
  Reader(const std::filesystem::path& path, double strength, const io::TensorTable& tensors)
      : file_(io::TensorFile::open(path)),
        source_(io::checkpoint_source(io::Checkpoint::of(file_))),
        tensors_(tensors),
        names_(tensors),
        metadata_(path, file_->metadata()),
        where_(path.string()) {
    lora_.file = path;
    lora_.config_file = metadata_.config_file();
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
    refuse_pictures();
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
      if (!source_->contains(key)) continue;  // a scale of another key, or a description
      const std::optional<LoraKey> found = names_.find(key);
      if (!found) {
        unmatched_.push_back(key);
        continue;
      }
      if (found->part == LoraPart::kDropped) {
        dropped_.push_back(key);
        continue;
      }
      if (found->part == LoraPart::kUnsupported) {
        fail(
            "{}: '{}' is of {}, which is not supported; LoRA and LoCon without lora_mid are, and LoHa and LoKr without "
            "{}",
            where_, key, LoraNames::family(key), "Tucker cores (hada_t1, hada_t2, lokr_t2)");
      }
      std::string& place = modules_[found->module][found->part];
      if (!place.empty()) fail("{}: '{}' and '{}' are the same change of '{}'", where_, place, key, found->module);
      place = key;
    }
  }

  // No key belongs to this model.
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

  // A model whose only inputs are the channels that it makes does not attend to a picture; what a LoRA taught of that
  // is lost.
  void refuse_pictures() const {
    const Shape &in = tensors_["patch_embedding.weight"].shape, &out = tensors_["proj_out.weight"].shape;
    if (in.size() / in[0] != out[0]) return;
    for (const std::string& key : unmatched_) {
      if (key.find("k_img") == std::string::npos && key.find("add_k_proj") == std::string::npos) continue;
      fail("{}: is a LoRA of a model that attends to a picture (by '{}'), which this one does not; use one made for it",
           where_, key);
    }
  }

  void read(const std::string& name, const Module& module) {
    using enum LoraPart;
    const bool product = module.any({kDown, kUp});
    const bool hadamard = module.any({kHadamard1A, kHadamard1B, kHadamard2A, kHadamard2B});
    const bool kronecker =
        module.any({kKronecker1, kKronecker1A, kKronecker1B, kKronecker2, kKronecker2A, kKronecker2B});
    if (!product && !module[kUpBias].empty())
      fail("{}: '{}' is without the lora_A and lora_B that it belongs to", where_, module[kUpBias]);
    if (!product && !hadamard && !kronecker && !module[kAlpha].empty()) unmatched_.push_back(module[kAlpha]);
    const std::string& weight = names_.weight(name);
    const bool multiplies = product && !has_other_channels(weight, module[kDown], RowsOf::kRank);
    if (product && !multiplies)
      for (const LoraPart part : {kDown, kUp, kAlpha, kUpBias})
        if (!module[part].empty()) unmatched_.push_back(module[part]);
    const double scale = multiplies ? add_product(name, module) : 1;
    if (hadamard) add_hadamard(name, module);
    if (kronecker) add_kronecker(name, module);
    if (has_other_channels(weight, module[kWhole], RowsOf::kWeight)) unmatched_.push_back(module[kWhole]);
    else if (!module[kWhole].empty()) add_whole(weight, module[kWhole], 1);
    if (multiplies && !module[kUpBias].empty()) add_whole(names_.bias(name), module[kUpBias], scale);
    if (!module[kBias].empty()) add_whole(names_.bias(name), module[kBias], 1);
  }

  // The weight of a module.
  struct Target {
    std::string name;
    Shape shape;
    int64_t rows, columns;
  };
  Target target_of(const std::string& module) const {
    const std::string name = names_.weight(module);
    const Shape& shape = tensors_[name].shape;
    return {name, shape, shape[0], shape.size() / shape[0]};
  }

  std::string pair_text(const std::string& up, const std::string& down) const {
    return fmt::format("{}: '{}' {} and '{}' {}", where_, up, source_->info(up).shape.to_string(), down,
                       source_->info(down).shape.to_string());
  }
  [[noreturn]] void no_change(const std::string& pair, const Target& target) const {
    fail("{} do not fit '{}' {}; is this LoRA for another model, or one of another size?", pair, target.name,
         target.shape.to_string());
  }

  // The sizes of up [rows, rank] times down [rank, columns].
  struct Extents {
    int64_t rows, columns, rank;
  };
  Extents product_of(const std::string& up_key, const std::string& down_key) const {
    const Shape down = source_->info(down_key).shape, up = source_->info(up_key).shape;
    const int64_t rank = down.rank() == 0 ? 0 : down[0];
    if (rank < 1) fail("{} have no rank; they must be [out, rank] and [rank, in]", pair_text(up_key, down_key));
    if (up.rank() < 2 || up.size() != up[0] * rank) {
      fail("{} differ in rank; they must be [out, rank] and [rank, in]", pair_text(up_key, down_key));
    }
    check_values(down_key);
    check_values(up_key);
    return {up[0], down.size() / rank, rank};
  }

  double scale_of(const std::string& name, const Module& module, int64_t rank) const {
    const std::string& alpha = module[LoraPart::kAlpha];
    return alpha.empty() ? metadata_.scale({name, names_.original(name)}, rank)
                         : number(alpha) / static_cast<double>(rank);
  }

  void add(const Target& target, io::WeightDelta delta, int64_t rank) {
    delta.scale = factor(target.name, delta.scale);
    lora_.scratch_elements =
        std::max(lora_.scratch_elements, io::merge_scratch_elements(target.rows, target.columns, delta));
    lora_.deltas[target.name].push_back(std::move(delta));
    if (rank == 0) return;
    lora_.least_rank = lora_.least_rank == 0 ? rank : std::min(lora_.least_rank, rank);
    lora_.largest_rank = std::max(lora_.largest_rank, rank);
  }

  // Returns alpha / rank.
  double add_product(const std::string& name, const Module& module) {
    const std::string &down = module[LoraPart::kDown], &up = module[LoraPart::kUp];
    if (down.empty() || up.empty()) {
      fail("{}: '{}' is without its other half; lora_A and lora_B (lora_down and lora_up) come in pairs", where_,
           down.empty() ? up : down);
    }
    const Target target = target_of(name);
    const Extents size = product_of(up, down);
    if (size.rows != target.rows || size.columns != target.columns) no_change(pair_text(up, down), target);
    const double scale = scale_of(name, module, size.rank);
    add(target, {source_, up, down, "", scale}, size.rank);
    return scale;
  }

  void add_hadamard(const std::string& name, const Module& module) {
    using enum LoraPart;
    for (const LoraPart part : {kHadamard1A, kHadamard1B, kHadamard2A, kHadamard2B}) {
      if (!module[part].empty()) continue;
      fail("{}: the LoHa of '{}' lacks a factor; hada_w1_a, hada_w1_b, hada_w2_a and hada_w2_b come together", where_,
           name);
    }
    const Target target = target_of(name);
    int64_t rank = 0;  // alpha is divided by the first product's, as LyCORIS does; the other's may be another
    for (const auto& [up, down] : {std::pair{kHadamard2A, kHadamard2B}, {kHadamard1A, kHadamard1B}}) {
      const Extents size = product_of(module[up], module[down]);
      if (size.rows != target.rows || size.columns != target.columns)
        no_change(pair_text(module[up], module[down]), target);
      rank = size.rank;
    }
    io::WeightDelta delta{source_, module[kHadamard1A], module[kHadamard1B], "", scale_of(name, module, rank)};
    delta.join = io::DeltaJoin::kHadamard;
    delta.second = {module[kHadamard2A], module[kHadamard2B], ""};
    add(target, std::move(delta), rank);
  }

  // One of the two matrices of a Kronecker product.
  struct Factor {
    io::DeltaMatrix matrix;
    Extents size;
    std::string key;  // for people
  };
  Factor factor_of(const std::string& name, const std::string& whole, const std::string& up,
                   const std::string& down) const {
    const bool one = !whole.empty() && up.empty() && down.empty(), two = whole.empty() && !up.empty() && !down.empty();
    if (!one && !two) {
      fail("{}: the LoKr of '{}' must have each of lokr_w1 and lokr_w2 once, whole or as a product of _a and _b",
           where_, name);
    }
    if (two) return {{up, down, ""}, product_of(up, down), up};
    const Shape shape = source_->info(whole).shape;
    if (shape.rank() < 2 || shape.size() == 0)
      fail("{}: '{}' {} must be a matrix of at least one element", where_, whole, shape.to_string());
    check_values(whole);
    return {{"", "", whole}, {shape[0], shape.size() / shape[0], 0}, whole};
  }

  // Without a low-rank product there is no rank by which a tensor's alpha could be divided; PEFT divides that of its
  // configuration by the rank there all the same (peft/tuners/lokr/layer.py).
  void add_kronecker(const std::string& name, const Module& module) {
    using enum LoraPart;
    const Factor first = factor_of(name, module[kKronecker1], module[kKronecker1A], module[kKronecker1B]);
    const Factor second = factor_of(name, module[kKronecker2], module[kKronecker2A], module[kKronecker2B]);
    const Target target = target_of(name);
    if (first.size.rows * second.size.rows != target.rows || first.size.columns * second.size.columns != target.columns)
      no_change(fmt::format("{}: '{}' and '{}', of which the factors [{}, {}] and [{}, {}] come,", where_, first.key,
                            second.key, first.size.rows, first.size.columns, second.size.rows, second.size.columns),
                target);
    const int64_t rank = second.size.rank > 0 ? second.size.rank : first.size.rank;
    const double scale =
        rank > 0 ? scale_of(name, module, rank) : metadata_.stated_scale({name, names_.original(name)}).value_or(1);
    io::WeightDelta delta{source_, first.matrix, scale};
    delta.join = io::DeltaJoin::kKronecker;
    delta.second = second.matrix;
    add(target, std::move(delta), rank);
  }

  enum class RowsOf : uint8_t { kWeight, kRank };  // what the first dimension of a tensor counts
  // Of text to video's patch embedding, in a LoRA that is used with image to video too, which takes more channels.
  bool has_other_channels(const std::string& target, const std::string& key, RowsOf rows) const {
    if (key.empty() || target != "patch_embedding.weight") return false;
    const Shape& shape = tensors_[target].shape;
    Shape found = source_->info(key).shape;
    if (found.rank() != shape.rank() || found[1] >= shape[1]) return false;
    found[1] = shape[1];
    if (rows == RowsOf::kRank) found[0] = shape[0];
    return found == shape;
  }

  void add_whole(const std::string& target, const std::string& key, double scale) {
    const Shape& shape = tensors_[target].shape;
    const Shape found = source_->info(key).shape;
    if (found.size() != shape.size() || (found.rank() == shape.rank() && !(found == shape))) {
      fail("{}: '{}' {} does not fit '{}' {}; is this LoRA for another model, or one of another size?", where_, key,
           found.to_string(), target, shape.to_string());
    }
    check_values(key);
    lora_.deltas[target].push_back({source_, "", "", key, factor(target, scale)});
  }

  // Strength times alpha / rank, by which sums in float32 multiply.
  double factor(const std::string& target, double scale) const {
    const double factor = lora_.strength * scale;
    if (std::abs(factor) <= std::numeric_limits<float>::max()) return factor;
    fail("{}: changes '{}' by a factor of {} (strength {} times alpha / rank), which float32 does not hold; lower one",
         where_, target, factor, lora_.strength);
  }

  double number(const std::string& key) const {
    if (source_->info(key).shape.size() != 1) {
      fail("{}: '{}' {} must be a single number", where_, key, source_->info(key).shape.to_string());
    }
    double number = 0;
    if (const std::optional<int64_t> whole = integer(key)) {
      number = static_cast<double>(*whole);
    } else {
      check_values(key);
      float value = 0;
      source_->read_range(key, {0, 1}, TensorView(&value, DType::kF32, {1}));
      number = value;
    }
    source_->release(key);
    return number;
  }

  // Of a tensor of one integer, which the alphas of Lightning files are; nothing for other types.
  std::optional<int64_t> integer(const std::string& key) const {
    const std::string type = source_->info(key).dtype_name;
    const std::byte* at = file_->bytes(key);
    const auto read = [&](auto value) {
      std::memcpy(&value, at, sizeof value);
      return static_cast<int64_t>(value);
    };
    if (type == "I64") return read(int64_t{});
    if (type == "I32") return read(int32_t{});
    if (type == "I16") return read(int16_t{});
    if (type == "I8") return read(int8_t{});
    if (type == "U32") return read(uint32_t{});
    if (type == "U16") return read(uint16_t{});
    if (type == "U8") return read(uint8_t{});
    return std::nullopt;
  }

  void check_values(const std::string& key) const {
    const io::TensorInfo info = source_->info(key);
    if (!io::is_readable(info))
      fail("{}: '{}' is stored as {}, but F32, BF16, F16 or F64 is needed", where_, key, info.dtype_name);
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

  std::shared_ptr<const io::TensorFile> file_;
  std::shared_ptr<const io::WeightSource> source_;
  io::TensorIndex tensors_;
  LoraNames names_;
  PeftMetadata metadata_;
  std::string where_;
  std::map<std::string, Module> modules_;
  std::vector<std::string> unmatched_, dropped_;
  Lora lora_;
};

}  // namespace

Lora open_lora(const std::filesystem::path& file, double strength, const io::TensorTable& tensors) {
  return Reader(file_in(file), strength, tensors).run();
}

void append(io::WeightDeltas& to, const io::WeightDeltas& more) {
  for (const auto& [name, changes] : more) {
    std::vector<io::WeightDelta>& mine = to[name];
    mine.insert(mine.end(), changes.begin(), changes.end());
  }
}

}  // namespace zoetrope::lora
