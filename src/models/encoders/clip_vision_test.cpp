#include "models/encoders/clip_vision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/json.h"
#include "base/test_folder.h"
#include "io/weights/random_weights.h"
#include "io/weights/safetensors.h"
#include "models/encoders/cost.h"
#include "models/encoders/tensor_tables.h"
#include "models/testing/golden.h"
#include "tensor/dispatch.h"

namespace zoetrope::encoders {
namespace {

using golden::GoldenCase;
using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- a plain tower in double ----

using Matrix = std::vector<std::vector<double>>;  // [rows][columns]

class PlainTower {
 public:
  PlainTower(const ClipVisionConfig& config, const io::WeightSource& source) : c_(config), source_(source) {}

  Matrix encode(const float* pixels) const {
    Matrix x = embeddings(pixels);
    x = norm(x, "vision_model.pre_layrnorm");
    for (int64_t i = 0; i + 1 < c_.num_hidden_layers; ++i) layer(x, fmt::format("vision_model.encoder.layers.{}.", i));
    return x;
  }

 private:
  std::vector<double> read(const std::string& name) const {
    const Tensor values(DType::kF32, source_.info(name).shape);
    source_.read(name, values);
    return {values.data<float>(), values.data<float>() + values.size()};
  }

  Matrix embeddings(const float* pixels) const {
    const auto d = static_cast<size_t>(c_.hidden_size);
    const int64_t p = c_.patch_size, across = c_.image_size / p;
    const auto filter = read("vision_model.embeddings.patch_embedding.weight");
    const auto position = read("vision_model.embeddings.position_embedding.weight");
    Matrix x{read("vision_model.embeddings.class_embedding")};
    for (int64_t patch = 0; patch < c_.patches(); ++patch) {
      std::vector<double> row(d);
      for (size_t j = 0; j < d; ++j)
        for (int64_t c = 0; c < 3; ++c)
          for (int64_t dy = 0; dy < p; ++dy)
            for (int64_t dx = 0; dx < p; ++dx) {
              const int64_t y = patch / across * p + dy, z = patch % across * p + dx;
              row[j] += static_cast<double>(pixels[(c * c_.image_size + y) * c_.image_size + z]) *
                        filter[j * static_cast<size_t>(3 * p * p) + static_cast<size_t>((c * p + dy) * p + dx)];
            }
      x.push_back(row);
    }
    for (size_t t = 0; t < x.size(); ++t)
      for (size_t j = 0; j < d; ++j) x[t][j] += position[t * d + j];
    return x;
  }

  Matrix norm(const Matrix& x, const std::string& name) const {
    const auto weight = read(name + ".weight"), bias = read(name + ".bias");
    Matrix y = x;
    for (auto& row : y) {
      const auto n = static_cast<double>(row.size());
      double mean = 0, variance = 0;
      for (const double v : row) mean += v / n;
      for (const double v : row) variance += (v - mean) * (v - mean) / n;
      for (size_t j = 0; j < row.size(); ++j) {
        row[j] = (row[j] - mean) / std::sqrt(variance + c_.layer_norm_eps) * weight[j] + bias[j];
      }
    }
    return y;
  }

  Matrix linear(const Matrix& x, const std::string& name) const {
    const auto weight = read(name + ".weight"), bias = read(name + ".bias");
    Matrix y;
    for (const auto& row : x) {
      y.push_back(bias);
      for (size_t j = 0; j < bias.size(); ++j)
        for (size_t k = 0; k < row.size(); ++k) y.back()[j] += row[k] * weight[j * row.size() + k];
    }
    return y;
  }

  Matrix attention(const Matrix& q, const Matrix& k, const Matrix& v) const {
    const auto size = static_cast<size_t>(c_.head_dim());
    Matrix o(q.size(), std::vector<double>(q[0].size()));
    for (size_t first = 0; first < q[0].size(); first += size)
      for (size_t i = 0; i < q.size(); ++i) {
        std::vector<double> weights;
        double sum = 0;
        for (const auto& key : k) {
          double dot = 0;
          for (size_t j = first; j < first + size; ++j) dot += q[i][j] * key[j];
          weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(size))));
          sum += weights.back();
        }
        for (size_t t = 0; t < v.size(); ++t)
          for (size_t j = first; j < first + size; ++j) o[i][j] += weights[t] / sum * v[t][j];
      }
    return o;
  }

  static void add(Matrix& x, const Matrix& y) {
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < x[i].size(); ++j) x[i][j] += y[i][j];
  }

  void layer(Matrix& x, const std::string& prefix) const {
    const std::string self = prefix + "self_attn.";
    Matrix n = norm(x, prefix + "layer_norm1");
    add(x, linear(attention(linear(n, self + "q_proj"), linear(n, self + "k_proj"), linear(n, self + "v_proj")),
                  self + "out_proj"));
    n = linear(norm(x, prefix + "layer_norm2"), prefix + "mlp.fc1");
    for (auto& row : n)
      for (double& value : row) value *= 0.5 * std::erfc(-value / std::sqrt(2.0));
    add(x, linear(n, prefix + "mlp.fc2"));
  }

  const ClipVisionConfig& c_;
  const io::WeightSource& source_;
};

// ---- ours ----

ClipVisionConfig small_config() {
  ClipVisionConfig config;
  config.hidden_size = 60;
  config.intermediate_size = 76;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 3;
  config.image_size = 35;
  config.patch_size = 7;
  config.projection_dim = 9;
  return config;
}

Tensor random_pixels(const ClipVisionConfig& config, int64_t pictures) {
  Tensor pixels(DType::kF32, {pictures, 3, config.image_size, config.image_size});
  uint64_t state = 88172645463325252u;
  for (int64_t i = 0; i < pixels.size(); ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    pixels.data<float>()[i] = static_cast<float>(state >> 40) / 8388608.0f * 2 - 2;
  }
  return pixels;
}

Tensor plain(const ClipVisionConfig& config, const io::WeightSource& source, const Tensor& pixels) {
  const PlainTower tower(config, source);
  Tensor out(DType::kF64, {pixels.extent(0), config.tokens(), config.hidden_size});
  double* to = out.data<double>();
  for (int64_t i = 0; i < pixels.extent(0); ++i) {
    for (const auto& row : tower.encode(pixels.view().select(0, i).data<float>()))
      to = std::copy(row.begin(), row.end(), to);
  }
  return out;
}

// A float32 sum of K terms is wrong by u·√K of its size or so, and each half of a layer adds such an error (4 more
// roundings around it) to the stream; the embeddings have one, and softmax and GELU keep about what they are given.
double float32_bound(const ClipVisionConfig& config) {
  const double terms =
      static_cast<double>(std::max(config.intermediate_size, 3 * config.patch_size * config.patch_size));
  return std::ldexp(1.0, -24) * (4 + std::sqrt(terms)) * static_cast<double>(2 * config.num_hidden_layers);
}

TEST(ClipVision, EqualsThePlainTower) {
  const ClipVisionConfig config = small_config();
  const auto source = io::random_weights(clip_vision_tensors(config), "image_encoder", 1);
  const ClipVision tower(source, config, DType::kF32);
  for (const int64_t pictures : {1, 2, 3}) {
    const Tensor pixels = random_pixels(config, pictures);
    const Tensor out(DType::kF32, {pictures, config.tokens(), config.hidden_size});
    for (const int threads : {1, 3}) {
      Stream stream(threads);
      int seen = 0;
      int ticks = 0;
      tower.encode(
          stream, pixels, out, [&](auto, const TensorView&) { ++seen; }, [&] { ++ticks; });
      EXPECT_EQ(seen, 1 + config.layers_used());
      EXPECT_EQ(ticks, config.layers_used());
      const auto error = golden::difference(out, plain(config, *source, pixels));
      EXPECT_LE(error.rel_l2, float32_bound(config)) << pictures << " pictures, " << threads << " threads";
    }
  }
}

// bf16 has 8 bits; per half layer the operands, q, k, v or the hidden rows, and the stream are rounded, each by at most
// 2^−9 of a value.
TEST(ClipVision, BFloat16) {
  const ClipVisionConfig config = small_config();
  const auto source = io::random_weights(clip_vision_tensors(config), "image_encoder", 1);
  const Tensor pixels = random_pixels(config, 2);
  Stream stream(2);
  const Tensor wide(DType::kF32, {2, config.tokens(), config.hidden_size}), narrow(DType::kBF16, wide.shape());
  const ClipVision tower(source, config, DType::kBF16);
  tower.encode(stream, pixels, wide);
  tower.encode(stream, pixels, narrow);
  const Tensor expected = plain(config, *source, pixels);
  const double bound = std::ldexp(1.0, -9) * static_cast<double>(4 * 2 * config.layers_used());
  EXPECT_LE(golden::difference(wide, expected).rel_l2, bound);
  EXPECT_GT(golden::difference(wide, expected).rel_l2, float32_bound(config));  // it is bf16 that ran
  EXPECT_EQ(golden::difference(narrow, wide).max_abs, 0);
}

Tensor stored_as(DType dtype, const io::WeightSource& source, const io::TensorSpec& spec) {
  Tensor values(DType::kF32, spec.shape), stored(dtype, spec.shape);
  source.read(spec.name, values);
  const auto round = [&](auto type) {
    using Value = typename decltype(type)::type;
    for (int64_t i = 0; i < values.size(); ++i) stored.data<Value>()[i] = from_float<Value>(values.data<float>()[i]);
  };
  if (dtype == DType::kF16) round(TypeTag<Float16>{});
  else with_compute_type(dtype, "test", round);
  return stored;
}

// Weights in a file, as F32, BF16 and F16, in place or converted on the way: the values are those of the file.
TEST(ClipVision, WeightsFromFiles) {
  const ClipVisionConfig config = small_config();
  const auto source = io::random_weights(clip_vision_tensors(config), "image_encoder", 1);
  const Tensor pixels = random_pixels(config, 2);
  const TestFolder folder;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<Tensor> tensors;
    io::SafetensorsWriter writer;
    for (const io::TensorSpec& spec : clip_vision_tensors(config, ClipTensors::kUsed)) {
      tensors.push_back(stored_as(dtype, *source, spec));
      writer.add(spec.name, tensors.back());
    }
    writer.write(folder / "model.safetensors");
    const auto stored = io::checkpoint_source(io::Checkpoint::open(folder.path(), "model"));
    constexpr int kThreads = 4;  // a tile of attention each: more than the block that an arena begins with
    Stream stream(kThreads);
    const Tensor out(DType::kF32, {2, config.tokens(), config.hidden_size});
    ClipVision(stored, config, DType::kF32).encode(stream, pixels, out);
    const auto error = golden::difference(out, plain(config, *stored, pixels));
    EXPECT_LE(error.rel_l2, float32_bound(config)) << dtype_name(dtype);
    const size_t buffer = dtype == DType::kF16 ? clip_buffer_bytes(config, DType::kF32) : 0;
    const size_t booked = clip_workspace_bytes(config, 2, DType::kF32, kThreads) + buffer;
    ASSERT_GT(booked, size_t{1} << 20);
    EXPECT_EQ(stream.scratch().reserved(), booked) << dtype_name(dtype);
  }
}

TEST(ClipVision, MissingAndMisshapenTensorsAreNamed) {
  ClipVisionConfig config = small_config();
  io::TensorTable table = clip_vision_tensors(config);
  const std::string lost = "vision_model.encoder.layers.1.mlp.fc2.bias";
  std::erase_if(table, [&](const io::TensorSpec& spec) { return spec.name == lost; });
  EXPECT_THAT(error_of([&] { ClipVision(io::random_weights(table, "image_encoder", 1), config, DType::kF32); }),
              HasSubstr(lost));
  const auto source = io::random_weights(clip_vision_tensors(config), "image_encoder", 1);
  config.intermediate_size += 1;
  EXPECT_THAT(error_of([&] { ClipVision(source, config, DType::kF32); }), AllOf(HasSubstr("mlp.fc1"), HasSubstr("77")));
}

// ---- recorded ----

TEST(ClipVision, RecordedEmbeddings) {
  for (const auto& [pipeline, run] : {std::pair{"wan21_i2v", "i2v"}, std::pair{"wan21_flf2v", "flf2v"}}) {
    const GoldenCase golden(std::string("pipelines/") + pipeline, std::string(run) + ".safetensors");
    const auto folder = golden.root() / "pipelines" / pipeline / "image_encoder";
    const auto config = ClipVisionConfig::load(folder / "config.json");
    const auto source = io::checkpoint_source(io::Checkpoint::open(folder, "model"));
    const TensorView recorded = golden.tensor("image_embeds");
    const Tensor pixels = golden::clone(golden.tensor("clip_pixel_values"));
    const Tensor out(DType::kF32, recorded.shape());
    Stream stream(2);
    ClipVision(source, config, DType::kF32).encode(stream, pixels, out);
    // Two float32 towers, each as far from the plain one.
    EXPECT_LE(golden::difference(recorded, plain(config, *source, pixels)).rel_l2, float32_bound(config)) << pipeline;
    EXPECT_LE(golden::difference(out, plain(config, *source, pixels)).rel_l2, float32_bound(config)) << pipeline;
    EXPECT_LE(golden::difference(out, recorded).rel_l2, 2 * float32_bound(config)) << pipeline;
  }
}

// ---- configs ----

TEST(ClipVisionConfig, NestedAndFlat) {
  const auto parse = [](const std::string& text) {
    return ClipVisionConfig::from_json(JsonObject::parse(text, "folder/config.json"));
  };
  const std::string sizes = R"("hidden_size": 1280, "intermediate_size": 5120, "image_size": 224,
                               "num_hidden_layers": 32, "num_attention_heads": 16, "patch_size": 14)";
  const std::string vision = R"("hidden_act": "gelu", )" + sizes;
  const ClipVisionConfig published = parse("{" + vision + R"(, "projection_dim": 1024})");
  EXPECT_EQ(io::totals(clip_vision_tensors(published)).parameters, 632'076'800);
  EXPECT_EQ(published.tokens(), 257);
  const ClipVisionConfig nested =
      parse(R"({"model_type": "clip", "projection_dim": 1024, "text_config": {}, "vision_config": {)" + vision + "}}");
  EXPECT_EQ(io::totals(clip_vision_tensors(nested)).parameters, 632'076'800);
  const auto refusal = [&](const std::string& more) { return error_of([&] { parse("{" + vision + more + "}"); }); };
  EXPECT_THAT(error_of([&] { parse(R"({"hidden_act": "quick_gelu", )" + sizes + "}"); }),
              AllOf(HasSubstr("hidden_act"), HasSubstr("quick_gelu")));
  EXPECT_THAT(refusal(R"(, "model_type": "siglip")"), HasSubstr("model_type"));
  EXPECT_THAT(refusal(R"(, "num_channels": 4)"), HasSubstr("num_channels"));
  EXPECT_THAT(error_of([&] { parse(R"({"hidden_act": "gelu"})"); }), HasSubstr("hidden_size"));
  EXPECT_THAT(error_of([&] {
                parse(R"({"hidden_act": "gelu", "hidden_size": 10, "intermediate_size": 5, "image_size": 8,
                          "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4})");
              }),
              HasSubstr("num_attention_heads (3)"));
  EXPECT_THAT(error_of([&] {
                parse(R"({"hidden_act": "gelu", "hidden_size": 9, "intermediate_size": 5, "image_size": 9,
                          "num_hidden_layers": 2, "num_attention_heads": 3, "patch_size": 4})");
              }),
              HasSubstr("patch_size (4)"));
}

}  // namespace
}  // namespace zoetrope::encoders
