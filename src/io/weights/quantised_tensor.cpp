#include "io/weights/quantised_tensor.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "io/weights/block_formats.h"
#include "io/weights/scaled_tensor.h"

namespace zoetrope::io {
namespace {

// Of a GGUF file: one block after the other, whatever the rows of the tensor's true shape.
class BlockTensor final : public QuantisedTensor {
 public:
  BlockTensor(const std::string& where, const StoredPart& part, const BlockFormat& format)
      : QuantisedTensor(where, format.name, part.info->shape, static_cast<int64_t>(format.elements), 1),
        bytes_(part.bytes),
        format_(format) {}

 private:
  void decode(int64_t, IndexRange columns, float* out) const override {
    const auto elements = static_cast<int64_t>(format_.elements);
    const std::byte* const first = bytes_ + columns.begin / elements * static_cast<int64_t>(format_.bytes);
    format_.decode(first, columns.size() / elements, out);
  }

  const std::byte* bytes_;
  const BlockFormat& format_;
};

// Refused when it is read.
class UnknownTensor final : public QuantisedTensor {
 public:
  UnknownTensor(const QuantisedTensor& codes, std::string why)
      : QuantisedTensor(why, codes.format(), codes.shape(), 1), why_(std::move(why)) {}

 private:
  void decode(int64_t, IndexRange, float*) const override { fail("{}", why_); }

  const std::string why_;
};

constexpr std::string_view kPrefixes[] = {"model.diffusion_model.", "diffusion_model.",
                                          "model."};  // of a transformer's names
constexpr std::string_view kOtherComponents[] = {"text_encoders.", "first_stage_model.", "clip_vision.",
                                                 "conditioner.",   "cond_stage_model.",  "vae."};

constexpr int64_t kPiece = 4096;  // elements

// The layer's name where `name` has this ending, else nothing.
std::optional<std::string> before(const std::string& name, std::string_view ending) {
  if (!name.ends_with(ending)) return std::nullopt;
  return name.substr(0, name.size() - ending.size());
}

// Formats of other programs, by a tensor that only they have.
constexpr std::pair<std::string_view, const char*> kForeign[] = {
    {".absmax", "bitsandbytes"},   {".quant_map", "bitsandbytes"}, {".qweight", "GPTQ or AWQ"},
    {".qzeros", "GPTQ or AWQ"},    {".weight._data", "quanto"},    {".weight._scale", "quanto"},
    {".smooth_factor", "SVDQuant"}};

// Null for names of formats that are read.
const char* foreign_format(const std::string& name) {
  if (name.find(".quant_state.") != std::string::npos) return "bitsandbytes";
  for (const auto& [ending, format] : kForeign)
    if (name.ends_with(ending)) return format;
  return nullptr;
}

class Finder {
 public:
  explicit Finder(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  QuantisedTensors find() {
    for (const auto& file : checkpoint_.files()) refuse_left_out(*file);
    for (const auto& file : checkpoint_.files()) read_configurations(*file);
    for (const std::string& name : checkpoint_.names()) note(name);
    for (const std::string& name : checkpoint_.names()) {
      if (found_.helpers.count(name) == 0) add(name);
    }
    require_weights();
    for (const std::string& name : checkpoint_.names()) refuse_unknown(name);
    return std::move(found_);
  }

 private:
  // Without its scale a weight is another one. Other tensors that the index leaves out are not the checkpoint's.
  void refuse_left_out(const TensorFile& file) const {
    for (const auto& [name, info] : file.tensors()) {
      if (checkpoint_.contains(name)) continue;
      for (const char* ending :
           {".scale_weight", ".weight_scale", ".weight_scale_2", ".pre_quant_scale", ".comfy_quant"}) {
        const auto layer = before(name, ending);
        if (!layer || !checkpoint_.contains(*layer + ".weight")) continue;
        if (!holds_codes(checkpoint_.info(*layer + ".weight"))) continue;
        fail("{}: places tensor '{}.weight', but not '{}' of {}, which says how it is read; write the index anew",
             checkpoint_.index().string(), *layer, name, file.path().filename().string());
      }
    }
  }

  // Of all layers, in the header of a file.
  void read_configurations(const TensorFile& file) {
    constexpr const char* kKey = "_quantization_metadata";
    const auto text = file.metadata().find(kKey);
    if (text == file.metadata().end()) return;
    const std::string where = file.path().string() + ": " + kKey;
    const nlohmann::json raw = parse_json(text->second, where);
    if (const auto found = raw.find("format_version"); raw.is_object() && found != raw.end()) {
      const std::string version = found->is_string() ? found->get<std::string>() : found->dump();
      if (!version.starts_with("1")) fail("{}: format_version is {}, and this program reads 1.0", where, version);
    }
    const auto layers = JsonObject::parse(text->second, where).object("layers");
    for (const std::string& name : layers.keys()) {
      const std::string layer = in_file(name);
      configure(layer, layers.object(name));
      const ScaledLayer& configured = layers_[layer];
      if (configured.rotation_group) rotated_by_header_.emplace(layer, where);
      // ModelOpt's, which writes both: low nibbles first, scales row by row. Only ComfyUI's order is read.
      if ((configured.format == "nvfp4" || configured.format == "mxfp8") &&
          file.metadata().find("quantization_config") != file.metadata().end()) {
        fail(
            "{}: layer '{}' is {} in the order of ModelOpt, as 'quantization_config' says; this program reads that of "
            "ComfyUI",
            where, name, configured.format);
      }
    }
  }

  // Headers name layers with the prefix of the file's tensors or without.
  std::string in_file(const std::string& layer) const {
    if (checkpoint_.contains(layer + ".weight")) return layer;
    for (const std::string_view prefix : kPrefixes) {
      const std::string longer = std::string(prefix) + layer;
      if (checkpoint_.contains(longer + ".weight")) return longer;
      if (layer.starts_with(prefix) && checkpoint_.contains(layer.substr(prefix.size()) + ".weight"))
        return layer.substr(prefix.size());
    }
    return layer;
  }

  void configure(const std::string& name, const JsonObject& configuration) {
    ScaledLayer& layer = layers_[name];
    layer.format = configuration.get<std::string>("format");
    // Each key stands in `params` or beside it.
    const JsonObject params = configuration.find_object("params").value_or(configuration);
    constexpr int64_t kUsualGroup = 256;
    layer.rotation_group.reset();
    const auto says = [&](const char* key) { return params.has(key) || configuration.has(key); };
    layer.names_group = says("convrot_groupsize") && !says("convrot");
    if (!params.get<bool>("convrot", configuration.get<bool>("convrot", false))) return;
    layer.rotation_group =
        params.get<int64_t>("convrot_groupsize", configuration.get<int64_t>("convrot_groupsize", kUsualGroup));
  }

  StoredPart part(const std::string& name) const {
    const TensorFile& file = checkpoint_.holder(name);
    return {name, &file.info(name), file.bytes(name)};
  }

  // Scales and descriptions, which belong to a layer.
  void note(const std::string& name) {
    const std::string file = checkpoint_.file(name).string();
    if (const char* format = foreign_format(name)) {
      fail("{}: tensor '{}' belongs to a layer stored as {}, which this program cannot read; {}", file, name, format,
           kReadableFormats);
    }
    if (name == "scaled_fp8" || name.ends_with(".scaled_fp8")) {
      found_.helpers.insert(name);  // repeats what the tensors' types say
      return;
    }
    // Of activations, which stay floats here.
    for (const char* ending : {".scale_input", ".input_scale", ".output_scale", ".act_scale", ".q_scale", ".k_scale",
                               ".v_scale", ".input_zero_point", ".output_zero_point"}) {
      if (!before(name, ending)) continue;
      found_.helpers.insert(name);
      return;
    }
    for (const char* ending : {".scale_weight", ".weight_scale"}) {
      if (const auto layer = before(name, ending)) return note_scale(*layer, name, layers_[*layer].scale);
    }
    if (const auto layer = before(name, ".weight_scale_2")) {
      return note_scale(*layer, name, layers_[*layer].second_scale);
    }
    if (const auto layer = before(name, ".pre_quant_scale")) {
      return note_scale(*layer, name, layers_[*layer].input_scale);
    }
    if (const auto layer = before(name, ".comfy_quant")) {
      const StoredPart text = part(name);
      const std::string_view json(reinterpret_cast<const char*>(text.bytes), text.info->bytes);
      configure(*layer, JsonObject::parse(json, fmt::format("{}: tensor '{}'", file, name)));
      described_by_[*layer] = name;
      found_.helpers.insert(name);
    }
  }

  void note_scale(const std::string& layer, const std::string& name, std::optional<StoredPart>& scale) {
    if (scale) {
      fail("{}: layer '{}' has two scales, '{}' and '{}'", checkpoint_.file(name).string(), layer, scale->name, name);
    }
    if (checkpoint_.info(name).shape.size() == 0) {
      fail("{}: scale '{}' has no value; the file is damaged, download it again", checkpoint_.file(name).string(),
           name);
    }
    scale = part(name);
    described_by_.emplace(layer, name);
    found_.helpers.insert(name);
  }

  void add(const std::string& name) {
    const std::string file = checkpoint_.file(name).string();
    const StoredPart codes = part(name);
    const auto layer = before(name, ".weight");
    const auto described = layer ? layers_.find(*layer) : layers_.end();
    if (const BlockFormat* format = find_block_format(codes.info->dtype_name)) {
      const std::string where = fmt::format("{}: tensor '{}'", file, name);
      if (described != layers_.end()) {
        fail("{} is stored as {}, whose blocks hold their scales, but '{}' belongs to it too; download the file again",
             where, format->name, described_by_[*layer]);
      }
      found_.tensors[name] = std::make_shared<BlockTensor>(where, codes, *format);
      return;
    }
    if (described != layers_.end()) {
      found_.tensors[name] = scaled_tensor(file, codes, described->second);
      described_by_.erase(*layer);
      rotated_by_header_.erase(*layer);
    } else if (holds_codes(*codes.info) && (layer || codes.info->dtype_name != "I8")) {  // not an integer of a LoRA
      found_.tensors[name] = scaled_tensor(file, codes, {});
    }
  }

  // A tensor next to the codes of a layer says how they are read: a scale by another name, zeros to subtract.
  void refuse_unknown(const std::string& name) {
    if (found_.helpers.count(name) != 0 || found_.tensors.count(name) != 0) return;
    std::string layer = name.substr(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.'));
    if (const auto inner = before(layer, ".weight")) layer = *inner;
    if (layer.ends_with("quantizer")) layer = layer.substr(0, layer.rfind('.'));
    const auto codes = found_.tensors.find(layer + ".weight");
    if (codes == found_.tensors.end() || name == layer + ".bias") return;
    const std::string why =
        fmt::format("{}: tensor '{}' belongs to a layer stored as {}, and this program does not know what it says; {}",
                    checkpoint_.file(name).string(), name, codes->second->format(), kReadableFormats);
    // Of an all-in-one file other components may not be read at all.
    const bool other = std::any_of(std::begin(kOtherComponents), std::end(kOtherComponents),
                                   [&](std::string_view prefix) { return layer.starts_with(prefix); });
    if (!other) fail("{}", why);
    codes->second = std::make_shared<UnknownTensor>(*codes->second, why);
  }

  void require_weights() const {
    if (!rotated_by_header_.empty()) {
      const auto& [layer, where] = *rotated_by_header_.begin();
      fail(
          "{}: layer '{}' is rotated (convrot), but there is no '{}.weight'; layers must have the names of the tensors",
          where, layer, layer);
    }
    if (described_by_.empty()) return;
    const auto& [layer, name] = *described_by_.begin();
    fail("{}: '{}' belongs to no weight: there is no '{}.weight'", checkpoint_.file(name).string(), name, layer);
  }

  const Checkpoint& checkpoint_;
  std::map<std::string, ScaledLayer> layers_;
  std::map<std::string, std::string> described_by_;  // layers without a weight so far, and the tensor that names them
  std::map<std::string, std::string> rotated_by_header_;  // likewise, of a header, and where that is
  QuantisedTensors found_;
};

}  // namespace

QuantisedTensor::QuantisedTensor(std::string where, std::string format, const Shape& shape, int64_t unit, int64_t rows)
    : where_(std::move(where)),
      format_(std::move(format)),
      shape_(shape),
      rows_(rows > 0           ? rows
            : shape.rank() > 1 ? shape[0]
                               : 1),
      columns_(rows_ == 0 ? 0 : shape.size() / rows_),
      unit_(unit) {}

void QuantisedTensor::read(IndexRange range, float* out) const {
  const int64_t most = std::max<int64_t>(1, kPiece / unit_) * unit_;  // in one go, so that it is checked in the cache
  std::vector<float> whole;                                           // a unit of which not all is wanted
  for (int64_t at = range.begin; at < range.end;) {
    const int64_t row = at / columns_, column = at % columns_;
    const int64_t end = std::min(columns_, column + range.end - at);
    const int64_t unit_begin = column / unit_ * unit_;
    int64_t taken = std::min(end / unit_ * unit_ - column, most);
    if (unit_begin == column && taken > 0) {
      decode(row, {column, column + taken}, out);
    } else {
      whole.resize(static_cast<size_t>(unit_));
      decode(row, {unit_begin, unit_begin + unit_}, whole.data());
      taken = std::min(end, unit_begin + unit_) - column;
      std::copy_n(whole.begin() + (column - unit_begin), taken, out);
    }
    require_finite({out, static_cast<size_t>(taken)});
    at += taken;
    out += taken;
  }
}

void QuantisedTensor::require_finite(std::span<const float> values) const {
  constexpr uint32_t kInfinity = 0x7f800000, kMagnitude = 0x7fffffff;
  uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, std::bit_cast<uint32_t>(value) & kMagnitude);
  if (largest < kInfinity) return;
  fail("{} holds a NaN or an infinite value or scale; the file is damaged, download it again", where_);
}

QuantisedTensors quantised_tensors(const Checkpoint& checkpoint) {
  QuantisedTensors found = Finder(checkpoint).find();
  for (const std::string& helper : found.helpers) checkpoint.release(helper);  // some were read
  return found;
}

}  // namespace zoetrope::io
