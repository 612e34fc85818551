// umt5: prompt cleaning, token ids, and the encoder's activations.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/input_file.h"
#include "device/stream.h"
#include "io/weights/checkpoint.h"
#include "io/weights/tensor_file.h"
#include "io/weights/weights.h"
#include "models/encoders/relative_bias.h"
#include "models/encoders/umt5.h"
#include "passes.h"
#include "report.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;

std::vector<double> as_doubles(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

void check_prompts(Report& report, const fs::path& table, const fs::path& tokenizer_folder) {
  const text::Tokenizer tokenizer = text::Tokenizer::load(tokenizer_folder);
  const std::string stem = table.stem().string();
  size_t number = 0;
  for (const nlohmann::json& entry : parse_json(read_file(table), table.string())) {
    const std::string name = fmt::format("{}.{}", stem, number++);
    const std::string prompt = entry.at("prompt");
    const std::string clean = text::clean_prompt(prompt);
    report.check_text(name + ".clean", clean, entry.at("clean"));
    report.check_equal(name + ".ids_raw", as_doubles(tokenizer.encode(prompt)), entry.at("ids_raw"));
    const std::vector<int32_t> ids = tokenizer.encode(clean);
    report.check_equal(name + ".ids_clean", as_doubles(ids), entry.at("ids_clean"));
    // mask_sum counts the ids of another tokenizer where these are given; a rare prompt has another number of them.
    const nlohmann::json& counted =
        entry.contains("ids_clean_pipeline") ? entry["ids_clean_pipeline"] : entry["ids_clean"];
    if (counted.size() == entry.at("ids_clean").size()) {
      report.check_equal(name + ".mask_sum", {static_cast<double>(ids.size())}, {entry.at("mask_sum").get<double>()});
    }
  }
}

}  // namespace

Tensor real_rows(const TensorView& values, const TensorView& mask) {
  Tensor out(DType::kF32, values.shape());
  const std::vector<double> from = to_doubles(values), keep = to_doubles(mask);
  const auto width = static_cast<size_t>(values.extent(2));
  for (size_t i = 0; i < from.size(); ++i) {
    out.data<float>()[i] = keep[i / width] != 0 ? static_cast<float>(from[i]) : 0.0f;
  }
  return out;
}

Tensor encode_text(std::shared_ptr<const io::WeightSource> source, const encoders::TextEncoderConfig& config,
                   DType dtype, const TensorView& recorded_ids, const TensorView& mask, const Probe& probe) {
  Stream stream(available_threads());
  encoders::TextEncoder encoder(std::move(source), config, dtype, stream);
  const int64_t batch = mask.extent(0), rows = mask.extent(1);
  Tensor ids(DType::kI32, {batch, rows});
  std::vector<int64_t> lengths(static_cast<size_t>(batch), 0);
  const std::vector<double> values = to_doubles(recorded_ids), valid = to_doubles(mask);
  for (size_t i = 0; i < values.size(); ++i) {
    ids.data<int32_t>()[i] = static_cast<int32_t>(values[i]);
    lengths[i / static_cast<size_t>(rows)] += valid[i] != 0 ? 1 : 0;
  }
  Tensor out(DType::kF32, {batch, rows, config.d_model});
  encoder.encode_batch(ids, lengths, out, probe);
  return real_rows(out, mask);
}

namespace {

void check_encoder(Report& report, const fs::path& checkpoint, const io::TensorFile& data, DType dtype,
                   const NoiseFloor& noise) {
  const auto config = encoders::TextEncoderConfig::load(checkpoint / "config.json");
  const TensorView mask = data.tensor("in.mask");
  const int64_t rows = mask.extent(1);
  const bool bf16 = dtype == DType::kBF16;
  const std::string prefix = bf16 ? "bf16." : "f32.";
  const Probe probe = [&](std::string_view name, const TensorView& value) {
    const std::string tensor = prefix + std::string(name);
    if (!data.contains(tensor)) return;
    const std::string reference = bf16 ? "f32." + std::string(name) : tensor;
    report.check(tensor, real_rows(value, mask), real_rows(data.tensor(reference), mask),
                 bf16 ? bf16_tolerance(noise.of("bf16_vs_f32", std::string(name)))
                      : float32_tolerance(noise.of("f32_vs_f64", std::string(name))));
  };
  encode_text(io::checkpoint_source(io::Checkpoint::open(checkpoint, "model")), config, dtype, data.tensor("in.ids"),
              mask, probe);
  if (bf16 || !data.contains("relative_buckets")) return;
  std::vector<double> buckets;
  for (int64_t distance = -(rows - 1); distance <= rows - 1; ++distance) {
    buckets.push_back(static_cast<double>(encoders::relative_position_bucket(
        distance, config.relative_attention_num_buckets, config.relative_attention_max_distance)));
  }
  report.check_equal("relative_buckets", buckets, to_doubles(data.tensor("relative_buckets")));
}

}  // namespace

void run_umt5_case(Report& report, const fs::path& root, const fs::path& folder) {
  const auto json = load_case(folder);
  const fs::path checkpoint = root / json.object("encoder").get<std::string>("checkpoint");
  check_prompts(report, folder / "tokenizer.json", checkpoint / "tokenizer");
  const fs::path identity = root / "pipelines" / "wan21_i2v" / "tokenizer";
  if (fs::exists(folder / "tokenizer_identity.json")) {
    if (fs::is_directory(identity)) {
      check_prompts(report, folder / "tokenizer_identity.json", identity);
    } else {
      report.skip("tokenizer_identity", "its tokenizer, pipelines/wan21_i2v/tokenizer, is not in this data set");
    }
  }
  const auto data = io::TensorFile::open(folder / "encoder.safetensors");
  const NoiseFloor noise(json);
  check_encoder(report, checkpoint / "text_encoder", *data, DType::kF32, noise);
  check_encoder(report, checkpoint / "text_encoder", *data, DType::kBF16, noise);
}

}  // namespace zoetrope::golden
