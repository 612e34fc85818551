#include "pipeline/records/run_record.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/options.h"
#include "io/weights/checksum.h"
#include "io/weights/safetensors.h"

namespace zoetrope::pipeline {
namespace {

using nlohmann::json;

constexpr int64_t kFormat = 2;                          // 1 compared weights by the ends of their files
constexpr const char* kFormatKey = "zoetrope_journal";  // of the metadata
constexpr const char* kRecordKey = "record";
constexpr const char* kHashKey = "checksum";

// The tensors of a record by name; `Record` is const to write and not to read.
template <typename Record>
auto tensors_of(Record& record) {
  return std::vector{std::pair("latents", &record.latents), std::pair("tail", &record.tail),
                     std::pair("full_latents", &record.denoise.full_latents),
                     std::pair("velocity", &record.denoise.velocity), std::pair("branches", &record.denoise.branches)};
}

std::string array_name(size_t index) { return fmt::format("solver.{}", index); }
constexpr const char* kEmbedding = "embedding";

// `tensors`: what the header must say of them.
std::string text_of(const RunRecord& r, const json& tensors) {
  json record = {{"settings", r.run.settings},
                 {"files", r.run.files},
                 {"version", r.run.version},
                 {"seeds", r.run.seeds},
                 {"segment", r.segment},
                 {"denoised", r.denoised},
                 {"next_step", r.denoise.solver.next},
                 {"solver_counters", r.denoise.solver.counters},
                 {"solver_arrays", r.denoise.solver.arrays.size()},
                 {"cache", r.denoise.cache},
                 {"pattern", r.denoise.pattern},
                 {"full_seconds", r.denoise.full_seconds},
                 {"reused_seconds", r.denoise.reused_seconds},
                 {"full_step", r.denoise.full_step},
                 {"frames", r.frames},
                 {"tensors", tensors}};
  if (r.denoise.reuse_error >= 0) record["reuse_error"] = r.denoise.reuse_error;
  if (r.denoise.largest_reuse_error >= 0) record["largest_reuse_error"] = r.denoise.largest_reuse_error;
  if (r.step_cache) {
    const StepCacheReport& report = *r.step_cache;
    record["step_cache"] = {{"name", report.name},
                            {"pattern", report.pattern},
                            {"reused", report.reused},
                            {"seconds_saved", report.seconds_saved}};
    if (report.reuse_error) record["step_cache"]["reuse_error"] = *report.reuse_error;
  }
  if (r.decode) {
    record["decode"] = {
        {"segment", r.decode->segment}, {"video", r.decode->video}, {"latent_frames", r.decode->latent_frames},
        {"frames", r.decode->frames},   {"parts", r.decode->parts}, {"generation", r.decode->generation}};
  }
  return json_text(record);
}

void read_text(const std::string& text, const std::string& file, RunRecord& r, size_t& arrays, json& tensors) {
  try {
    const json record = parse_json(text, file);
    record.at("settings").get_to(r.run.settings);
    record.at("files").get_to(r.run.files);
    record.at("version").get_to(r.run.version);
    record.at("seeds").get_to(r.run.seeds);
    record.at("segment").get_to(r.segment);
    record.at("denoised").get_to(r.denoised);
    record.at("next_step").get_to(r.denoise.solver.next);
    record.at("solver_counters").get_to(r.denoise.solver.counters);
    record.at("solver_arrays").get_to(arrays);
    record.at("cache").get_to(r.denoise.cache);
    if (record.contains("reuse_error")) record.at("reuse_error").get_to(r.denoise.reuse_error);
    if (record.contains("largest_reuse_error")) record.at("largest_reuse_error").get_to(r.denoise.largest_reuse_error);
    record.at("pattern").get_to(r.denoise.pattern);
    record.at("full_seconds").get_to(r.denoise.full_seconds);
    record.at("reused_seconds").get_to(r.denoise.reused_seconds);
    record.at("full_step").get_to(r.denoise.full_step);
    record.at("frames").get_to(r.frames);
    tensors = record.at("tensors");
    if (record.contains("step_cache")) {
      const json& cache = record.at("step_cache");
      StepCacheReport& report = r.step_cache.emplace();
      cache.at("name").get_to(report.name);
      cache.at("pattern").get_to(report.pattern);
      cache.at("reused").get_to(report.reused);
      cache.at("seconds_saved").get_to(report.seconds_saved);
      if (cache.contains("reuse_error")) report.reuse_error = cache.at("reuse_error").get<double>();
    }
    if (!record.contains("decode")) return;
    const json& decode = record.at("decode");
    DecodeState& d = r.decode.emplace();
    decode.at("segment").get_to(d.segment);
    decode.at("video").get_to(d.video);
    decode.at("latent_frames").get_to(d.latent_frames);
    decode.at("frames").get_to(d.frames);
    decode.at("parts").get_to(d.parts);
    decode.at("generation").get_to(d.generation);
  } catch (const json::exception& error) {
    fail("{}: is not a record of a run: {}", file, error.what());
  }
}

std::vector<int64_t> extents(const Shape& shape) {
  std::vector<int64_t> all;
  for (int axis = 0; axis < shape.rank(); ++axis) all.push_back(shape[axis]);
  return all;
}

uint64_t checksum_of(std::string_view bytes) {
  return io::checksum(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
}

}  // namespace

std::vector<std::string> differing(const std::map<std::string, std::string>& a,
                                   const std::map<std::string, std::string>& b) {
  std::map<std::string, std::string> all = a;
  all.insert(b.begin(), b.end());
  std::vector<std::string> keys;
  for (const auto& [key, unused] : all) {
    const auto one = a.find(key), other = b.find(key);
    if ((one == a.end() ? "" : one->second) != (other == b.end() ? "" : other->second)) keys.push_back(key);
  }
  return keys;
}

// The container's header, then the tensors in the order of their names.
std::string RunRecord::to_bytes() const {
  std::map<std::string, std::string_view> parts;
  json shapes = json::object();
  const auto add = [&](const std::string& name, const TensorView& tensor) {
    if (!tensor) return;
    ZT_CHECK(tensor.dtype() == DType::kF32 && tensor.contiguous());
    shapes[name] = extents(tensor.shape());
    parts[name] = {static_cast<const char*>(tensor.raw()), tensor.bytes()};
  };
  const auto add_values = [&](const std::string& name, const std::vector<float>& values) {
    if (values.empty()) return;
    shapes[name] = std::vector{values.size()};
    parts[name] = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  };
  for (const auto& [name, tensor] : tensors_of(*this)) add(name, *tensor);
  for (size_t i = 0; i < denoise.solver.arrays.size(); ++i) add_values(array_name(i), denoise.solver.arrays[i]);
  add_values(kEmbedding, denoise.embedding);
  json header;
  uint64_t end = 0;
  std::string data;
  for (const auto& [name, part] : parts) {
    const uint64_t begin = std::exchange(end, end + part.size());
    header[name] = {{"dtype", "F32"}, {"shape", shapes[name]}, {"data_offsets", {begin, end}}};
    data += part;
  }
  const std::string text = text_of(*this, shapes);
  header["__metadata__"] = {{kFormatKey, fmt::to_string(kFormat)},
                            {kRecordKey, text},
                            {kHashKey, fmt::format("{:016x}{:016x}", checksum_of(text), checksum_of(data))}};
  std::string head = json_text(header);
  constexpr size_t kAlignment = 8;
  head.resize((head.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const uint64_t length = head.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + head + data;
}

RunRecord RunRecord::from_bytes(const std::string& bytes, const std::string& file) {
  const io::TensorHeader header = io::read_safetensors_header(bytes, file);
  const auto metadata = [&](const char* key) {
    const auto found = header.metadata.find(key);
    if (found == header.metadata.end()) fail("{}: is not a record of a run: its metadata has no {}", file, key);
    return found->second;
  };
  const int64_t format = parse_integer(metadata(kFormatKey), {});
  const std::string text = metadata(kRecordKey);
  if (format >= 1 && format != kFormat) {
    throw OtherFormat(fmt::format(
        "{}: is of format {}, and this version reads {}; go on with the version that wrote it", file, format, kFormat));
  }
  const std::string_view data = std::string_view(bytes).substr(header.bytes);
  const std::string hash = fmt::format("{:016x}{:016x}", checksum_of(text), checksum_of(data));
  if (format < 1 || hash != metadata(kHashKey)) fail("{}: is damaged: its checksum is not that of its contents", file);
  RunRecord record;
  size_t arrays = 0;
  json listed, stored = json::object();
  read_text(text, file, record, arrays, listed);
  for (const auto& [name, info] : header.tensors)
    if (info.dtype == DType::kF32) stored[name] = extents(info.shape);
  if (stored != listed || stored.size() != header.tensors.size())
    fail("{}: is damaged: its tensors are not those of its record", file);
  const auto find = [&](const std::string& name) -> const io::TensorInfo* {
    const auto found = header.tensors.find(name);
    return found == header.tensors.end() ? nullptr : &found->second;
  };
  for (const auto& [name, tensor] : tensors_of(record)) {
    const io::TensorInfo* info = find(name);
    if (info == nullptr) continue;
    *tensor = Tensor::uninitialized(DType::kF32, info->shape);
    std::memcpy(tensor->view().raw(), bytes.data() + info->offset, info->bytes);
  }
  const auto values = [&](const std::string& name) {
    const io::TensorInfo* info = find(name);
    std::vector<float> read(info == nullptr ? 0 : info->bytes / sizeof(float));
    if (info != nullptr) std::memcpy(read.data(), bytes.data() + info->offset, info->bytes);
    return read;
  };
  constexpr size_t kMostArrays = 8;
  if (arrays > kMostArrays) fail("{}: is not a record of a run: a solver with {} arrays", file, arrays);
  for (size_t i = 0; i < arrays; ++i) record.denoise.solver.arrays.push_back(values(array_name(i)));
  record.denoise.embedding = values(kEmbedding);
  return record;
}

}  // namespace zoetrope::pipeline
