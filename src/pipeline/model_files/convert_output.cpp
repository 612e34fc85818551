#include "pipeline/model_files/convert_output.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/atomic_folder.h"
#include "base/error.h"
#include "base/json.h"
#include "io/weights/gguf.h"
#include "io/weights/safetensors_shards.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using Entry = io::SafetensorsStream::Entry;

constexpr uint64_t kSpareBytes = 16 << 20;                                // for everything that is not weights
constexpr std::string_view kSafetensors = "safetensors", kGguf = "GGUF";  // how TensorFile::container() begins

std::string type_of(const PlannedTensor& tensor) {
  return tensor.format == nullptr ? tensor.stored : tensor.format->type;
}

Entry plain_entry(const PlannedTensor& tensor) {
  const std::string type = type_of(tensor);
  const DType dtype = type == "F64"    ? DType::kF64
                      : type == "F32"  ? DType::kF32
                      : type == "BF16" ? DType::kBF16
                      : type == "F16"  ? DType::kF16
                                       : DType::kU8;
  return {tensor.to, dtype, tensor.shape, nullptr};
}

// By descending element size, so that every tensor is aligned. Scales are known after the codes, so they follow them,
// behind all tensors without any.
void sort_for_safetensors(std::vector<PlannedTensor>& tensors) {
  const auto rank = [](const PlannedTensor& tensor) {
    return tensor.has_scales() ? size_t{0} : dtype_size(plain_entry(tensor).dtype);
  };
  std::stable_sort(tensors.begin(), tensors.end(), [&](const auto& a, const auto& b) { return rank(a) > rank(b); });
}

std::vector<Entry> safetensors_entries(const std::vector<PlannedTensor>& tensors) {
  std::vector<Entry> entries;
  for (const PlannedTensor& tensor : tensors) {
    if (!tensor.has_scales()) {
      entries.push_back(plain_entry(tensor));
      continue;
    }
    entries.push_back({tensor.to, DType::kU8, tensor.shape_of_codes(), tensor.format->type});
    const auto encoder = io::tensor_encoder(tensor.format->format, tensor.shape);
    for (const io::TensorEncoder::Scales& scales : encoder->scales()) {
      const DType dtype = scales.type == std::string_view("F32") ? DType::kF32 : DType::kU8;
      entries.push_back({tensor.layer() + "." + scales.suffix, dtype, scales.shape, scales.type});
    }
    const auto length = static_cast<int64_t>(tensor.layer_text(*encoder).size());
    entries.push_back({tensor.layer() + ".comfy_quant", DType::kU8, {length}, nullptr});
  }
  return entries;
}

// Of the first file, but what describes how its tensors are stored.
std::map<std::string, std::string> safetensors_metadata(const io::Checkpoint& checkpoint) {
  const io::TensorFile& file = *checkpoint.files().front();
  std::map<std::string, std::string> metadata{{"format", "pt"}};  // other programs refuse files without it
  if (!file.container().starts_with(kSafetensors)) return metadata;
  for (const auto& [key, value] : file.metadata())
    if (key != "_quantization_metadata") metadata[key] = value;
  return metadata;
}

std::vector<std::string> gguf_metadata(const ComponentAlone& in, const io::NumberFormatInfo& format) {
  constexpr const char* kArchitecture = "general.architecture";
  constexpr uint32_t kQuantisationVersion = 2;
  const std::map<std::string_view, uint32_t> types{{"f32", 0},  {"f16", 1},  {"q4_0", 2}, {"q4_1", 3},
                                                   {"q8_0", 7}, {"q5_0", 8}, {"q5_1", 9}, {"bf16", 32}};
  const std::set<std::string> own{"general.alignment", "general.file_type", "general.quantization_version"};
  const io::TensorFile& file = *in.checkpoint.files().front();
  std::vector<std::string> entries;
  if (file.container().starts_with(kGguf)) {
    for (const auto& [key, value] : file.metadata()) {
      if (own.count(key) == 0 && !key.starts_with("comfy.gguf.orig_shape."))
        entries.emplace_back(file.metadata_entry(key));
    }
  } else if (in.component.name == "transformer") {
    entries.push_back(io::gguf_entry(kArchitecture, "wan"));
  } else if (in.component.name == "text_encoder") {
    entries.push_back(io::gguf_entry(kArchitecture, "t5encoder"));
  }
  entries.push_back(io::gguf_entry("general.file_type", types.at(format.word)));
  entries.push_back(io::gguf_entry("general.quantization_version", kQuantisationVersion));
  return entries;
}

void require_space(const std::string& out, uint64_t bytes) {
  std::error_code unknown;
  const fs::space_info space = fs::space(fs::absolute(out).parent_path(), unknown);
  if (unknown || space.available >= bytes + kSpareBytes) return;
  fail("out={}: {:.3f} GB are needed, but the disk has {:.3f} GB left", out, static_cast<double>(bytes) * 1e-9,
       static_cast<double>(space.available) * 1e-9);
}

class SafetensorsOutput final : public ConvertOutput {
 public:
  SafetensorsOutput(const std::string& out, const ConvertPlan& plan, const ComponentAlone& in)
      : ConvertOutput(plan.tensors) {
    sort_for_safetensors(tensors_);
    const std::vector<Entry> entries = safetensors_entries(tensors_);
    for (const Entry& entry : entries) bytes_ += entry.bytes();
    require_space(out, bytes_);
    stream_.emplace(out, entries, safetensors_metadata(in.checkpoint), io::SafetensorsStream::Order::kAsGiven);
  }
  void write(const void* data, size_t bytes) override { stream_->write(data, bytes); }
  void commit() override { stream_->commit(); }

 private:
  std::optional<io::SafetensorsStream> stream_;
};

class GgufOutput final : public ConvertOutput {
 public:
  GgufOutput(const std::string& out, const ConvertPlan& plan, const ComponentAlone& in) : ConvertOutput(plan.tensors) {
    std::vector<io::GgufStream::Entry> entries;
    for (const PlannedTensor& tensor : tensors_) {
      entries.push_back({tensor.to, type_of(tensor), tensor.shape});
      bytes_ += tensor.format == nullptr
                    ? in.checkpoint.info(tensor.from).bytes
                    : io::tensor_encoder(tensor.format->format, tensor.shape)->bytes(tensor.shape.size());
    }
    require_space(out, bytes_);
    stream_.emplace(out, entries, gguf_metadata(in, *plan.format));
  }
  void write(const void* data, size_t bytes) override { stream_->write(data, bytes); }
  void commit() override { stream_->commit(); }

 private:
  std::optional<io::GgufStream> stream_;
};

// A component's folder as the hub has it: config, and shards of weights with their index.
class FolderOutput final : public ConvertOutput {
 public:
  FolderOutput(const std::string& out, const ConvertPlan& plan, const ComponentAlone& in)
      : ConvertOutput({}),
        folder_(fs::path(out).parent_path()),
        shards_(folder_, "", in.component.stem, safetensors_entries(plan.tensors)) {
    bytes_ = shards_.bytes();
    std::map<std::string, const PlannedTensor*> planned;
    for (const PlannedTensor& tensor : plan.tensors) planned[tensor.to] = &tensor;
    for (const Entry& entry : shards_.entries()) tensors_.push_back(*planned.at(entry.name));
    require_space(fs::path(out).parent_path().string(), bytes_);
    std::map<std::string, std::string> changes;
    const std::map<std::string_view, const char*> dtypes{
        {"f32", "\"float32\""}, {"f16", "\"float16\""}, {"bf16", "\"bfloat16\""}};
    // Newer configs have "dtype", which is read first.
    const char* key = JsonObject::load(in.config).has("dtype") ? "dtype" : "torch_dtype";
    if (in.component.stem == kTextEncoderStem) changes[key] = dtypes.at(plan.format->word);
    folder_.write("config.json", json_with(in.config, changes));
  }
  void write(const void* data, size_t bytes) override { shards_.write(data, bytes); }
  void commit() override {
    shards_.finish();
    folder_.commit();
  }

 private:
  AtomicFolder folder_;
  io::SafetensorsShards shards_;
};

}  // namespace

std::unique_ptr<ConvertOutput> open_convert_output(const ConvertOptions& options, const ConvertPlan& plan,
                                                   const ComponentAlone& in) {
  switch (plan.container) {
    case Container::kSafetensors:
      return std::make_unique<SafetensorsOutput>(options.out, plan, in);
    case Container::kGguf:
      return std::make_unique<GgufOutput>(options.out, plan, in);
    case Container::kFolder:
      break;
  }
  return std::make_unique<FolderOutput>(options.out, plan, in);
}

}  // namespace zoetrope::pipeline
