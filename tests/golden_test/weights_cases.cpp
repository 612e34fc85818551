// weights/*: files of weights in the layouts and formats that people have. Every value bit by bit, then what a pass
// with these values makes.
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "io/weights/checkpoint.h"
#include "io/weights/formula_testing.h"
#include "io/weights/merged_source.h"
#include "models/encoders/clip_vision.h"
#include "models/encoders/tensor_tables.h"
#include "models/lora/lora.h"
#include "models/wan/tensor_tables.h"
#include "passes.h"
#include "pipeline/model_files/component_files.h"
#include "pipeline/model_files/gguf_tokenizer.h"
#include "pipeline/model_files/model_folder.h"
#include "report.h"

namespace zoetrope::golden {
namespace {

namespace fs = std::filesystem;
using Source = std::shared_ptr<const io::WeightSource>;

// What the set says of transformers: four times the noise of the largest.
constexpr Deviation kTransformerTolerance{2e-6, 0};

// Other cases of the data set: beside this one's folder, or beside the folder of all files of weights.
fs::path other_case(const fs::path& root, const fs::path& path) {
  return fs::exists(root / path) ? root / path : root.parent_path() / path;
}

// FNV-1a over the values' 32-bit words.
std::string hash_of(const Tensor& values, bool moved) {
  uint64_t hash = 0xCBF29CE484222325;
  for (int64_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(values.data<float>()[i]) ^ (moved && i == 0 ? 1 : 0);
    hash = (hash ^ bits) * 0x100000001B3;
  }
  return fmt::format("{:016x}", hash);
}

Tensor values_of(const io::WeightSource& source, const std::string& name) {
  Tensor values(DType::kF32, source.info(name).shape);
  source.read(name, values);
  return values;
}

class WeightsCase {
 public:
  WeightsCase(Report& report, fs::path root, fs::path folder)
      : report_(report), root_(std::move(root)), folder_(std::move(folder)), json_(load_case(folder_)) {}

  void run() {
    const std::string kind = folder_.filename().string();
    if (kind == "bad") return check_bad();
    if (kind == "int8_linear") return report_.skip("*", "int8 products take bf16 here, the recorded run is float32");
    if (kind == "blocks") return check_blocks();
    if (kind == "lora") return check_loras();
    for (const auto& [file, recorded] : json_.raw().at("files").items()) {
      try {
        if (kind.starts_with("dit")) check_transformer(file, recorded);
        else if (kind.starts_with("vae")) check_vae(file, recorded);
        else if (kind.starts_with("umt5")) check_text_encoder(file, recorded);
        else if (kind.starts_with("clip")) check_image_encoder(file, recorded);
        else report_.fail(file, "no test knows this kind of file");
      } catch (const Error& error) {
        report_.fail(file, error.what());
      }
    }
  }

 private:
  static std::string stem(const std::string& file) { return fs::path(file).stem().string(); }

  const io::TensorFile& expected() {
    if (!expected_) expected_ = io::TensorFile::open(folder_ / "expected.safetensors");
    return *expected_;
  }

  // The file that "inputs" begins with.
  std::shared_ptr<const io::TensorFile> inputs() const {
    std::string text = json_.get<std::string>("inputs");
    text = text.substr(0, text.find_first_of(": "));
    return io::TensorFile::open(other_case(root_, text));
  }

  void check_values(const std::string& file, const io::WeightSource& source, const nlohmann::json& recorded) {
    for (const auto& [name, tensor] : recorded.at("tensors").items()) {
      const std::string label = fmt::format("{}.{}", stem(file), name);
      if (!source.contains(name)) {
        report_.fail(label, "the file does not have it");
        continue;
      }
      const Tensor values = values_of(source, name);
      const auto hash = tensor.at("fnv1a64").get<std::string>();
      report_.check_that(label, "bits of " + tensor.at("stored").get<std::string>(),
                         [&](bool moved) { return hash_of(values, moved) == hash; });
    }
  }

  Source open(const std::string& file, const pipeline::Component& component) {
    const io::Checkpoint checkpoint = pipeline::open_component(folder_ / file, component);
    auto names = pipeline::names_of(checkpoint, component, component.tensors);
    return io::named_source(io::checkpoint_source(checkpoint),
                            std::make_shared<const io::NamesInFile>(std::move(names)));
  }

  wan::TransformerConfig transformer_config() const {
    nlohmann::json config = json_.raw().at("config");
    config["_class_name"] = json_.get<std::string>("class", "WanTransformer3DModel");
    return wan::TransformerConfig::from_json(JsonObject::parse(config.dump(), folder_.string()));
  }

  void check_output(const std::string& name, const wan::TransformerConfig& config, Source source,
                    const io::TensorFile& data) {
    const Values seen = forward(config, std::make_shared<io::Weights>(std::move(source)), DType::kF32, data);
    report_.check(name, seen.at("output"), expected().tensor(name), kTransformerTolerance);
  }

  void check_transformer(const std::string& file, const nlohmann::json& recorded) {
    const wan::TransformerConfig config = transformer_config();
    const Source source = open(file, {.name = "transformer",
                                      .stem = pipeline::kDiffusersStem,
                                      .tensors = wan::transformer_tensors(config),
                                      .files = wan::transformer_files()});
    check_values(file, *source, recorded);
    check_output("output." + stem(file), config, source, json_.has("inputs") ? *inputs() : expected());
    if (expected().contains("w8a8." + stem(file))) {
      report_.skip("w8a8." + stem(file), "products of int8 are not built");
    }
  }

  void check_vae(const std::string& file, const nlohmann::json& recorded) {
    const std::string model = folder_.filename() == "vae22" ? "wan22_ti2v" : "wan21_t2v";
    const auto config = wan::VaeConfig::load(other_case(root_, "pipelines") / model / "vae" / "config.json");
    const Source source = open(file, {.name = "vae",
                                      .stem = pipeline::kDiffusersStem,
                                      .tensors = wan::vae_tensors(config),
                                      .files = wan::vae_files()});
    check_values(file, *source, recorded);
    wan::VaeDecoder decoder(std::make_shared<wan::VaeWeights>(config, source));
    Stream stream(available_threads());
    const auto data = inputs();
    const TensorView z = data->tensor("in.z").slice(2, 0, 2);
    const NoiseFloor noise(load_case(other_case(root_, folder_.filename())));
    report_.check(stem(file) + ".decode.sample", decode(stream, decoder, z), expected().tensor("decode.sample"),
                  float32_tolerance(noise.of("f32_vs_f64", "decode.f5")));
  }

  void check_text_encoder(const std::string& file, const nlohmann::json& recorded) {
    const auto umt5 = load_case(other_case(root_, "umt5"));
    const fs::path checkpoint = other_case(root_, umt5.object("encoder").get<std::string>("checkpoint"));
    const auto config = encoders::TextEncoderConfig::load(checkpoint / "text_encoder" / "config.json");
    const Source source = open(file, {.name = "text_encoder",
                                      .stem = pipeline::kTextEncoderStem,
                                      .tensors = encoders::text_encoder_tensors(config),
                                      .files = encoders::text_encoder_files()});
    check_values(file, *source, recorded);
    check_tokens(file);
    const auto data = inputs();
    const std::string name = "last_hidden_state." + stem(file);
    const TensorView reference = expected().tensor(name);
    const Tensor all = encode_text(source, config, DType::kF32, data->tensor("in.ids"), data->tensor("in.mask"));
    const TensorView first = all.view().slice(1, 0, reference.extent(1));
    report_.check(name, first, reference, float32_tolerance(NoiseFloor(umt5).of("f32_vs_f64", "last_hidden_state")));
  }

  // Of a tokenizer within the file. Tokens that are spelled out are plain text to it.
  void check_tokens(const std::string& file) {
    const auto tokenizer = pipeline::gguf_tokenizer(*io::TensorFile::open(folder_ / file));
    if (!tokenizer) return;
    const fs::path table = other_case(root_, json_.get<std::string>("tokenizer_tables"));
    size_t number = 0;
    for (const nlohmann::json& entry : parse_json(read_file(table), table.string())) {
      const std::string label = fmt::format("{}.ids.{}", stem(file), number++);
      for (const auto& [text, ids] : {std::pair("prompt", "ids_raw"), std::pair("clean", "ids_clean")}) {
        const auto words = entry.at(text).get<std::string>();
        if (words.find("<extra_id_") != std::string::npos || words.find("</s>") != std::string::npos) continue;
        const std::vector<int32_t> ours = tokenizer->encode(words);
        report_.check_equal(label + "." + ids, {ours.begin(), ours.end()}, entry.at(ids));
      }
    }
  }

  void check_image_encoder(const std::string& file, const nlohmann::json& recorded) {
    const fs::path checkpoint = other_case(root_, json_.get<std::string>("checkpoint"));
    const auto config = encoders::ClipVisionConfig::load(checkpoint / "config.json");
    const Source source = open(file, {.name = "image_encoder",
                                      .stem = pipeline::kTextEncoderStem,
                                      .tensors = encoders::clip_vision_tensors(config),
                                      .files = encoders::clip_vision_files()});
    check_values(file, *source, recorded);
    Stream stream(available_threads());
    const std::string name = "penultimate." + stem(file);
    const TensorView reference = expected().tensor(name);
    Tensor rows(DType::kF32, reference.shape());
    encoders::ClipVision(source, config, DType::kF32).encode(stream, inputs()->tensor("clip_pixel_values"), rows);
    // The set measures no noise of the tower; its text encoder is as deep and of the same products.
    const NoiseFloor noise(load_case(other_case(root_, "umt5")));
    report_.check(name, rows, reference, {4 * noise.of("f32_vs_f64", "last_hidden_state").rel_l2, 0});
  }

  // Merged into weights that are given by formula.
  void check_loras() {
    const wan::TransformerConfig config = transformer_config();
    const io::TensorTable table = wan::transformer_tensors(config);
    const auto inputs =
        io::TensorFile::open(folder_.parent_path() / json_.get<std::string>("base") / "expected.safetensors");
    for (const auto& [file, recorded] : json_.raw().at("files").items()) {
      const lora::Lora lora = lora::open_lora(folder_ / file, recorded.at("strength").get<double>(), table);
      const Source merged = io::merged_source(io::procedural_source(folder_ / "base.json"), lora.deltas);
      const std::string prefix = stem(file) + ".";
      for (const auto& [name, info] : expected().tensors()) {
        if (!name.starts_with(prefix) || name == prefix + "output") continue;
        check_merged(name, values_of(*merged, name.substr(prefix.size())), expected().tensor(name));
      }
      check_output(prefix + "output", config, merged, *inputs);
    }
  }

  // Within a millionth of the largest value.
  void check_merged(const std::string& name, const Tensor& ours, const TensorView& reference) {
    const std::vector<double> a = to_doubles(ours), b = to_doubles(reference);
    double most = 0;
    for (const double value : b) most = std::max(most, std::abs(value));
    const double tolerance = 1e-6 * most;
    report_.check_that(name, fmt::format("within {:.3g}", tolerance), [&](bool moved) {
      bool holds = a.size() == b.size();
      for (size_t i = 0; holds && i < a.size(); ++i) {
        holds = std::abs(a[i] + (moved ? 10 * tolerance : 0) - b[i]) <= tolerance;
      }
      return holds;
    });
  }

  void check_blocks() {
    const io::Checkpoint checkpoint = io::Checkpoint::open_file(folder_ / "blocks.gguf");
    check_values("blocks", *io::checkpoint_source(checkpoint), json_.raw().at("files").at("blocks.gguf"));
  }

  // Everything but "good…" must be refused with a sentence that names the file, at the latest when it is read.
  void check_bad() {
    for (const std::string& file : json_.keys()) {
      std::string said;
      try {
        const io::Checkpoint checkpoint = io::Checkpoint::open_file(folder_ / file);
        if (!file.starts_with("good")) pipeline::kind_of(checkpoint);
        const auto source = io::checkpoint_source(checkpoint);
        for (const std::string& name : source->names()) values_of(*source, name);
      } catch (const Error& error) {
        said = error.what();
      }
      const bool good = file.starts_with("good");
      report_.check_that(file, good ? "is read" : "is refused", [&](bool moved) {
        return moved != (good ? said.empty() : said.find(file) != std::string::npos);
      });
    }
  }

  Report& report_;
  fs::path root_, folder_;
  JsonObject json_;
  std::shared_ptr<const io::TensorFile> expected_;
};

}  // namespace

void run_weights_case(Report& report, const fs::path& root, const fs::path& folder) {
  WeightsCase(report, root, folder).run();
}

}  // namespace zoetrope::golden
