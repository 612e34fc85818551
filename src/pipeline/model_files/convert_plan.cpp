#include "pipeline/model_files/convert_plan.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/words.h"
#include "io/weights/block_formats.h"
#include "models/encoders/tensor_tables.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using io::NumberFormatInfo;
using io::TensorRole;

constexpr std::string_view kWeight = ".weight";
constexpr size_t kTextUnit = 4;  // the text of a layer is filled up to it, so that the scale behind it is aligned
constexpr const char* kTokenizerList = "tokenizer.ggml.tokens";  // of GGUF's metadata

std::string words_of(bool (*wanted)(const NumberFormatInfo&)) {
  std::vector<std::string> words;
  for (const NumberFormatInfo& info : io::number_formats())
    if (wanted(info)) words.emplace_back(info.word);
  return fmt::format("{}", fmt::join(words, ", "));
}

// The format of the options. Throws Error for words of none, and for those that can only be read.
const NumberFormatInfo& wanted_format(const ConvertOptions& options) {
  const auto all = [](const NumberFormatInfo&) { return true; };
  if (options.format.empty()) fail("format: name the format to write, as format=FORMAT; there are {}", words_of(all));
  std::string word = dtype_spelling(lower_case(options.format));
  if (word == "float32") word = "f32";
  if (word == "float16" || word == "fp16") word = "f16";
  if (const NumberFormatInfo* info = io::find_number_format(word)) return *info;
  const bool searched = word.starts_with("iq") || word.find("_k") != std::string::npos;
  fail("format={}: {}; there are {}", options.format,
       searched ? "is read but not made, because its scales come from a search that has no exact definition"
                : "there is no such format",
       words_of(all));
}

// Layers that repeat, by the hub's names: what published files have quantised.
bool in_block(const std::string& name) {
  constexpr const char* kBlocks[] = {"blocks.", "vace_blocks.", "encoder.block.", "vision_model.encoder.layers."};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                     [&](const char* block) { return name.starts_with(block); });
}

bool may_be_quantised(const io::TensorSpec& spec, const Shape& shape, const NumberFormatInfo& format) {
  return spec.role == TensorRole::kMatrix && !spec.keep_float32 && in_block(spec.name) && shape.rank() == 2 &&
         shape[1] % format.unit == 0;
}

// What GGUF files of Wan have in float32, whatever their format.
bool is_wide_in_gguf(const io::TensorSpec& spec, const Shape& shape, bool transformer) {
  constexpr int64_t kFew = 1024;
  const bool patches = transformer && spec.role == TensorRole::kConvolution;
  return shape.rank() <= 1 || shape.size() <= kFew || spec.keep_float32 || patches ||
         spec.role == TensorRole::kModulation;
}

// Null for types that are not plain.
const NumberFormatInfo* plain_format(const std::string& type) {
  for (const NumberFormatInfo& info : io::number_formats())
    if (info.plain() && type == info.type) return &info;
  return nullptr;
}

class Planner {
 public:
  Planner(const ConvertOptions& options, const ComponentAlone& in, const io::WeightSource& source)
      : options_(options), in_(in), source_(source), wanted_(wanted_format(options)) {
    plan_.container = wanted_container(options);
    plan_.format = &wanted_;
    if (plan_.container == Container::kFolder) layout_ = NameLayout::kDiffusers;
  }

  ConvertPlan plan() {
    std::set<std::string> seen;
    for (const io::TensorSpec& spec : in_.component.tensors) {
      const auto place = in_.names.places.find(spec.name);
      if (place == in_.names.places.end()) continue;
      const std::string& from = place->second.in_file.name;
      if (seen.insert(from).second) add(spec, place->second);
    }
    if (plan_.in_format == 0 && !wanted_.plain()) {
      fail("format={}: {} has no tensor that may be stored so, which are matrices of its blocks{}; use {}",
           wanted_.word, options_.in,
           wanted_.unit == 1 ? "" : fmt::format(" with rows of a multiple of {} elements", wanted_.unit),
           words_of([](const NumberFormatInfo& info) { return info.plain(); }));
    }
    keep_tokenizer(seen);
    const size_t others = source_.names().size() - seen.size();
    if (others > 0) {
      plan_.notes.push_back(fmt::format("left out because they are not part of the {}: {}", in_.component.name,
                                        counted(static_cast<int64_t>(others), "tensor")));
    }
    return std::move(plan_);
  }

 private:
  void add(const io::TensorSpec& spec, const io::NamesInFile::Place& place) {
    const io::TensorInfo info = source_.info(place.in_file.name);
    PlannedTensor tensor{.from = place.in_file.name, .to = name(spec, place), .stored = info.dtype_name, .shape = {}};
    // Files of GGUF may lack axes of extent 1.
    const bool whole = layout_ != NameLayout::kKept && !is_part(place.in_file);
    tensor.shape = whole ? spec.shape : info.shape;
    tensor.format = format(spec, info, tensor);
    plan_.in_format += tensor.format == &wanted_;
    const bool same_blocks =
        tensor.format != nullptr && !tensor.format->plain() && tensor.stored == tensor.format->type;
    if (same_blocks && io::find_block_format(tensor.stored) != nullptr) tensor.format = nullptr;
    plan_.tensors.push_back(std::move(tensor));
  }

  std::string name(const io::TensorSpec& spec, const io::NamesInFile::Place& place) const {
    if (layout_ == NameLayout::kKept) return place.in_file.name;
    std::optional<io::NamingScheme> scheme;
    if (layout_ == NameLayout::kOriginal) scheme = io::NamingScheme::kOriginal;
    const io::TensorAlias there = scheme ? spec.alias(*scheme) : io::TensorAlias{};
    const bool other = is_part(place.in_file) || is_part(there);
    if (other && in_.names.scheme != scheme) {
      fail(
          "layout: '{}' of {} is a part of a larger tensor, or transposed, in one of the two layouts, which is not "
          "supported; leave the key out",
          place.in_file.name, options_.in);
    }
    return scheme ? spec.name_in(*scheme) : spec.name;
  }
  static bool is_part(const io::TensorAlias& alias) { return alias.parts > 1 || alias.transposed; }

  // Null: as stored.
  const NumberFormatInfo* format(const io::TensorSpec& spec, const io::TensorInfo& info,
                                 const PlannedTensor& tensor) const {
    const NumberFormatInfo& f32 = io::info_of(io::NumberFormat::kF32);
    const bool gguf = plan_.container == Container::kGguf;
    if (gguf && is_wide_in_gguf(spec, tensor.shape, in_.component.name == "transformer")) return &f32;
    const bool may_change = !spec.keep_float32 || wanted_.format == io::NumberFormat::kF32;
    if (wanted_.plain() && may_change) return &wanted_;
    if (!wanted_.plain() && quantised(spec, tensor)) return &wanted_;
    if (const NumberFormatInfo* kept = plain_format(info.dtype_name)) return kept;
    return info.dtype == DType::kF64 && !gguf ? nullptr : &f32;
  }

  bool quantised(const io::TensorSpec& spec, const PlannedTensor& tensor) const {
    return may_be_quantised(spec, tensor.shape, wanted_) && tensor.to.ends_with(kWeight);
  }

  // Of a text encoder's file.
  void keep_tokenizer(std::set<std::string>& seen) {
    if (in_.component.name != "text_encoder") return;
    const io::TensorFile& file = *in_.checkpoint.files().front();
    const std::string name = encoders::kTokenizerTensor;
    const bool file_out = plan_.container == Container::kSafetensors, tensor = file.contains(name);
    if (tensor) seen.insert(name);
    if (tensor && file_out) {
      const io::TensorInfo& info = file.info(name);
      plan_.tensors.push_back({name, name, info.dtype_name, info.shape, nullptr, false});
    } else if (tensor || (file.list(kTokenizerList) != nullptr && plan_.container != Container::kGguf)) {
      plan_.notes.push_back(
          fmt::format("the tokenizer in {} has no place in {} and was left out: generate needs it as "
                      "tokenizer=",
                      options_.in, options_.out));
    }
  }

  const ConvertOptions& options_;
  const ComponentAlone& in_;
  const io::WeightSource& source_;
  const NumberFormatInfo& wanted_;
  NameLayout layout_ = options_.layout;
  ConvertPlan plan_;
};

}  // namespace

std::string PlannedTensor::type_text() const {
  if (format == nullptr) return stored;
  if (!has_scales()) return format->type;
  using enum io::NumberFormat;
  if (format->format == kMxfp8 || format->format == kNvfp4 || format->format == kInt8ConvRot) return format->word;
  const bool rows = format->format == kInt8Rows;
  return fmt::format("{} with a scale{}", format->type, rows ? " for each row" : "");
}

std::string PlannedTensor::layer_text(const io::TensorEncoder& encoder) const {
  const std::string more = encoder.layer_members();
  std::string text = fmt::format(R"({{"format": "{}"{}{}}})", format->layer, more.empty() ? "" : ", ", more);
  text.resize((text.size() + kTextUnit - 1) / kTextUnit * kTextUnit, ' ');
  return text;
}

Shape PlannedTensor::shape_of_codes() const {
  if (format->in_code == 1) return shape;
  return {shape[0], shape[1] / format->in_code};
}

std::string PlannedTensor::layer() const { return to.substr(0, to.size() - kWeight.size()); }

Container wanted_container(const ConvertOptions& options) {
  if (options.out.empty()) fail("out: name what to write, as out=FILE.safetensors, out=FILE.gguf or out=FOLDER/");
  const NumberFormatInfo& format = wanted_format(options);
  const fs::path ending = fs::path(options.out).extension();
  struct Kind {
    Container container;
    const char* text;
    bool (*has)(const NumberFormatInfo&);
  };
  const auto kind = [&]() -> Kind {
    if (options.out.ends_with('/')) return {Container::kFolder, "folders", [](const auto& f) { return f.plain(); }};
    if (ending == ".gguf") return {Container::kGguf, "GGUF files", [](const auto& f) { return f.gguf; }};
    if (ending == ".safetensors")
      return {Container::kSafetensors, "safetensors files", [](const auto& f) { return f.safetensors; }};
    fail("out={}: must end in .safetensors, in .gguf, or in / for a folder, which says what is written", options.out);
  }();
  if (!kind.has(format)) {
    fail("out={}: {} have no format {}; they have {}", options.out, kind.text, format.word, words_of(kind.has));
  }
  if (kind.container == Container::kFolder && options.layout == NameLayout::kOriginal) {
    fail("layout=original: a folder has the names of the hub; leave the key out, or write a file");
  }
  return kind.container;
}

int64_t converted_bytes(const io::TensorTable& tensors, const NumberFormatInfo& format, DType stored) {
  int64_t bytes = 0;
  for (const io::TensorSpec& spec : tensors) {
    const int64_t size = spec.shape.size();
    const bool quantised = may_be_quantised(spec, spec.shape, format);
    const DType plain = format.gguf && is_wide_in_gguf(spec, spec.shape, true) ? DType::kF32 : stored;
    bytes += quantised ? static_cast<int64_t>(io::tensor_encoder(format.format, spec.shape)->bytes(size))
                       : size * static_cast<int64_t>(dtype_size(plain));
  }
  return bytes;
}

ConvertPlan plan_conversion(const ConvertOptions& options, const ComponentAlone& in, const io::WeightSource& source) {
  return Planner(options, in, source).plan();
}

}  // namespace zoetrope::pipeline
