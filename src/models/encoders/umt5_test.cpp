#include "models/encoders/umt5.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "io/weights/formula_source.h"
#include "models/encoders/cost.h"
#include "models/encoders/relative_bias.h"
#include "models/encoders/tensor_tables.h"
#include "models/testing/golden.h"

namespace zoetrope::encoders {
namespace {

using golden::GoldenCase;

TEST(RelativePositionBucket, EdgesOfThePublishedModel) {
  const auto bucket = [](int64_t distance) { return relative_position_bucket(distance, 32, 128); };
  for (int64_t a = 0; a < 8; ++a) EXPECT_EQ(bucket(-a), a);
  const std::map<int64_t, int64_t> edges{{8, 8}, {12, 9}, {16, 10}, {23, 11}, {32, 12}, {46, 13}, {64, 14}, {91, 15}};
  for (const auto& [edge, index] : edges) {
    EXPECT_EQ(bucket(-edge), index);
    EXPECT_EQ(bucket(edge), 16 + index);
    if (edge > 8) {
      EXPECT_EQ(bucket(1 - edge), index - 1);
    }
  }
  EXPECT_EQ(bucket(-100000), 15);
  EXPECT_EQ(bucket(100000), 31);
  EXPECT_EQ(bucket(1), 17);
}

TEST(RelativePositionBucket, EqualsTheRecordedTable) {
  const GoldenCase golden("umt5", "encoder.safetensors");
  const TensorView recorded = golden.tensor("relative_buckets");
  const int64_t length = (recorded.size() + 1) / 2;
  for (int64_t i = 0; i < recorded.size(); ++i) {
    ASSERT_EQ(relative_position_bucket(i - length + 1, 32, 128), recorded.data<int64_t>()[i]) << i;
  }
}

TEST(RelativeBias, IsTheTableByBucketAndHead) {
  const Tensor table(DType::kF32, {8, 5});
  for (int64_t i = 0; i < table.size(); ++i) table.data<float>()[i] = static_cast<float>(i);
  const IndexRange heads{1, 4};
  const Tensor values(DType::kF32, {heads.size(), 2 * 37 - 1});
  fill_relative_values(table, heads, 20, values);
  for (const int64_t tokens : {37, 36, 1}) {
    const TensorView bias = as_relative_bias(values, tokens);
    ASSERT_EQ(bias.shape(), Shape({heads.size(), tokens, tokens}));
    for (int64_t h = 0; h < heads.size(); ++h)
      for (int64_t i = 0; i < tokens; ++i)
        for (int64_t j = 0; j < tokens; ++j) {
          const int64_t bucket = relative_position_bucket(j - i, 8, 20);
          ASSERT_EQ(bias.select(0, h).select(0, i).select(0, j).data<float>()[0],
                    static_cast<float>(bucket * 5 + heads.begin + h));
        }
  }
}

struct Recorded {
  GoldenCase golden{"umt5", "encoder.safetensors"};
  std::filesystem::path folder = golden.root() / "pipelines/wan21_t2v/text_encoder";
  TextEncoderConfig config = TextEncoderConfig::load(folder / "config.json");
  int64_t batch, length;
  Tensor ids;                    // [B, L] I32
  std::vector<int64_t> lengths;  // [B]

  Recorded() {
    const TensorView recorded = golden.tensor("in.ids"), mask = golden.tensor("in.mask");
    batch = recorded.extent(0);
    length = recorded.extent(1);
    ids = Tensor(DType::kI32, {batch, length});
    lengths.assign(static_cast<size_t>(batch), 0);
    for (int64_t i = 0; i < recorded.size(); ++i) {
      ids.data<int32_t>()[i] = static_cast<int32_t>(recorded.data<int64_t>()[i]);
      lengths[static_cast<size_t>(i / length)] += mask.data<int64_t>()[i];
    }
  }

  std::unique_ptr<TextEncoder> encoder(DType dtype, Stream& stream) const {
    return std::make_unique<TextEncoder>(io::checkpoint_source(io::Checkpoint::open(folder, "model")), config, dtype,
                                         stream);
  }

  // Sample b's real rows.
  TensorView real_rows(const TensorView& value, int64_t b) const {
    return value.select(0, b).slice(0, 0, lengths[static_cast<size_t>(b)]);
  }
};

TEST(RecordedEncoder, Float32) {
  const Recorded recorded;
  Stream stream(2);
  const Tensor out(DType::kF32, {recorded.batch, recorded.length, recorded.config.d_model});
  int compared = 0;
  recorded.encoder(DType::kF32, stream)
      ->encode_batch(recorded.ids, recorded.lengths, out, [&](auto name, const auto& value) {
        const std::string key(name);
        // 4 times the reference's own error against float64: see the transformer's test.
        const auto noise = recorded.golden.noise("f32_vs_f64", key);
        for (int64_t b = 0; b < recorded.batch; ++b, ++compared) {
          const auto error = golden::difference(recorded.real_rows(value, b),
                                                recorded.real_rows(recorded.golden.tensor("f32." + key), b));
          EXPECT_LE(error.rel_l2, 4 * noise.rel_l2) << key << " of prompt " << b;
          EXPECT_LE(error.max_abs, 4 * noise.max_abs) << key << " of prompt " << b;
        }
      });
  EXPECT_EQ(compared, recorded.batch * (recorded.config.num_layers + 1));
}

TEST(RecordedEncoder, BFloat16) {
  const Recorded recorded;
  Stream stream(2);
  const Tensor out(DType::kBF16, {recorded.batch, recorded.length, recorded.config.d_model});
  recorded.encoder(DType::kBF16, stream)->encode_batch(recorded.ids, recorded.lengths, out);
  const double limit = 1.5 * recorded.golden.noise("bf16_vs_f32", "last_hidden_state").rel_l2;
  for (int64_t b = 0; b < recorded.batch; ++b) {
    const auto error = golden::difference(recorded.real_rows(out, b),
                                          recorded.real_rows(recorded.golden.tensor("f32.last_hidden_state"), b));
    EXPECT_LE(error.rel_l2, limit) << b;
  }
}

// A prompt alone, without its padding, gives the same rows.
TEST(TextEncoder, PaddingDoesNotReachRealRows) {
  const Recorded recorded;
  Stream stream(2);
  const auto encoder = recorded.encoder(DType::kF32, stream);
  const Tensor all(DType::kF32, {recorded.batch, recorded.length, recorded.config.d_model});
  encoder->encode_batch(recorded.ids, recorded.lengths, all);
  const auto noise = recorded.golden.noise("f32_vs_f64", "last_hidden_state");
  for (int64_t b = 0; b < recorded.batch; ++b) {
    const auto rows = static_cast<size_t>(recorded.lengths[static_cast<size_t>(b)]);
    const Tensor alone(DType::kF32, {static_cast<int64_t>(rows), recorded.config.d_model});
    encoder->encode({recorded.ids.data<int32_t>() + b * recorded.length, rows}, alone);
    EXPECT_LE(golden::difference(alone, recorded.real_rows(all, b)).rel_l2, 4 * noise.rel_l2) << b;
  }
}

// The padding is not read (the ids there are outside the vocabulary), and its rows are zero.
TEST(TextEncoder, PaddingIsNeitherReadNorComputed) {
  const Recorded recorded;
  Stream stream(2);
  const auto encoder = recorded.encoder(DType::kF32, stream);
  const Shape shape{recorded.batch, recorded.length, recorded.config.d_model};
  const Tensor clean(DType::kF32, shape), dirty(DType::kF32, shape);
  encoder->encode_batch(recorded.ids, recorded.lengths, clean);
  int64_t padding = 0;
  for (int64_t b = 0; b < recorded.batch; ++b)
    for (int64_t i = recorded.lengths[static_cast<size_t>(b)]; i < recorded.length; ++i, ++padding) {
      recorded.ids.view().select(0, b).data<int32_t>()[i] = -7;
    }
  ASSERT_GT(padding, 0);
  std::fill_n(dirty.data<float>(), dirty.size(), 3.0f);
  encoder->encode_batch(recorded.ids, recorded.lengths, dirty);
  EXPECT_EQ(golden::difference(dirty, clean).max_abs, 0);
  for (int64_t b = 0; b < recorded.batch; ++b) {
    const TensorView rows = dirty.view().select(0, b);
    const int64_t own = recorded.lengths[static_cast<size_t>(b)] * recorded.config.d_model;
    for (int64_t i = own; i < rows.size(); ++i) ASSERT_EQ(rows.data<float>()[i], 0) << b;
  }
}

// A source that counts what is read of it.
class Counting final : public io::WeightSource {
 public:
  explicit Counting(std::shared_ptr<const io::WeightSource> source) : source_(std::move(source)) {}
  bool contains(const std::string& name) const override { return source_->contains(name); }
  std::vector<std::string> names() const override { return source_->names(); }
  io::TensorInfo info(const std::string& name) const override { return source_->info(name); }
  std::string where(const std::string& name) const override { return source_->where(name); }
  TensorView mapped(const std::string&) const override { return {}; }
  void read(const std::string& name, const TensorView& out) const override {
    ++reads[name];
    source_->read(name, out);
  }
  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override {
    ranges[name] += range.size();
    source_->read_range(name, range, out);
  }
  mutable std::map<std::string, int> reads;
  mutable std::map<std::string, int64_t> ranges;  // elements

 private:
  std::shared_ptr<const io::WeightSource> source_;
};

TEST(TextEncoder, ReadsEveryWeightOnceForAllPrompts) {
  const Recorded recorded;
  Stream stream(1);
  const auto source = std::make_shared<Counting>(io::checkpoint_source(io::Checkpoint::open(recorded.folder, "model")));
  const Tensor out(DType::kF32, {recorded.batch, recorded.length, recorded.config.d_model});
  ASSERT_GT(recorded.batch, 1);
  TextEncoder(source, recorded.config, DType::kF32, stream).encode_batch(recorded.ids, recorded.lengths, out);
  EXPECT_GT(source->reads.size(), 10u);
  for (const auto& [name, reads] : source->reads) EXPECT_EQ(reads, 1) << name;
  // Of the embedding, the rows of the ids.
  const int64_t rows = std::accumulate(recorded.lengths.begin(), recorded.lengths.end(), int64_t{0});
  EXPECT_EQ(source->ranges, (std::map<std::string, int64_t>{{"shared.weight", rows * recorded.config.d_model}}));
}

TEST(TextEncoder, WritesEitherDtype) {
  const Recorded recorded;
  Stream stream(1);
  const std::vector<int32_t> ids{5, 6, 7, 1};
  const auto encoder = recorded.encoder(DType::kF32, stream);
  const Tensor wide(DType::kF32, {4, recorded.config.d_model}), narrow(DType::kBF16, wide.shape());
  encoder->encode(ids, wide);
  encoder->encode(ids, narrow);
  for (int64_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(narrow.data<BFloat16>()[i].bits, to_bfloat16(wide.data<float>()[i]).bits);
  }
}

// The same parameters with the embedding under its other name.
class TiedName final : public io::WeightSource {
 public:
  explicit TiedName(std::shared_ptr<const io::WeightSource> source) : source_(std::move(source)) {}
  bool contains(const std::string& name) const override {
    return name != "shared.weight" && source_->contains(stored(name));
  }
  std::vector<std::string> names() const override { return source_->names(); }
  io::TensorInfo info(const std::string& name) const override { return source_->info(stored(name)); }
  std::string where(const std::string& name) const override { return source_->where(stored(name)); }
  TensorView mapped(const std::string& name) const override { return source_->mapped(stored(name)); }
  void read(const std::string& name, const TensorView& out) const override { source_->read(stored(name), out); }

 private:
  static std::string stored(const std::string& name) {
    if (name == "shared.weight") fail("'shared.weight' is not in this file");
    return name == "encoder.embed_tokens.weight" ? "shared.weight" : name;
  }
  std::shared_ptr<const io::WeightSource> source_;
};

TEST(TextEncoder, TakesTheEmbeddingUnderEitherName) {
  const Recorded recorded;
  Stream stream(1);
  const std::vector<int32_t> ids{5, 6, 7, 1};
  const Tensor shared(DType::kF32, {4, recorded.config.d_model}), tied(DType::kF32, shared.shape());
  recorded.encoder(DType::kF32, stream)->encode(ids, shared);
  const auto source = io::checkpoint_source(io::Checkpoint::open(recorded.folder, "model"));
  TextEncoder(std::make_shared<TiedName>(source), recorded.config, DType::kF32, stream).encode(ids, tied);
  EXPECT_EQ(golden::difference(tied, shared).max_abs, 0);
}

// Nothing beyond the formula is booked, and one more row would not fit.
TEST(TextEncoder, BooksWhatTheFormulaSays) {
  const Recorded recorded;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t length : {1, 40, 700}) {
      for (const int threads : {1, 3}) {
        Stream stream(threads);
        const Tensor out(DType::kF32, {length, recorded.config.d_model});
        recorded.encoder(dtype, stream)->encode(std::vector<int32_t>(static_cast<size_t>(length), 5), out);
        const TextEncoderUse use{length, length, dtype, 1, threads};
        // The recorded weights are F32: a bf16 encoder multiplies with them in place, too.
        EXPECT_EQ(stream.scratch().reserved(),
                  std::max(size_t{1} << 20, text_encoder_workspace_bytes(recorded.config, use)))
            << length << " ids, " << threads << " threads";
      }
    }
  }
}

// With as many heads as the published model: a short prompt's are packed together. Weights by formula need the buffer.
TEST(TextEncoder, BooksWhatTheFormulaSaysForManyHeads) {
  TextEncoderConfig config;
  config.d_model = 64, config.d_kv = 64, config.d_ff = 96, config.num_layers = 1, config.vocab_size = 10;
  std::map<std::string, io::Formula> formulas;
  for (const io::TensorSpec& spec : text_encoder_tensors(config)) formulas[spec.name] = {spec.shape, 0.5, 0.01};
  const auto source = std::make_shared<io::FormulaSource>("formulas", 1, formulas);
  for (const int64_t length : {1, 20, 65, 130}) {
    for (const int threads : {1, 2, 5}) {
      Stream stream(threads);
      const Tensor out(DType::kF32, {length, config.d_model});
      TextEncoder(source, config, DType::kBF16, stream)
          .encode(std::vector<int32_t>(static_cast<size_t>(length), 5), out);
      const size_t workspace = text_encoder_workspace_bytes(config, {length, length, DType::kBF16, 1, threads});
      const size_t buffer = text_encoder_buffer_bytes(config, DType::kBF16), block = size_t{1} << 20;
      EXPECT_EQ(stream.scratch().reserved(), std::max(block, workspace + buffer)) << length;
    }
  }
}

// At the published size, by hand: 512 rows of bf16 are 4 MiB at 4096 columns.
TEST(TextEncoderMemory, OfThePublishedModel) {
  const TextEncoderConfig published;
  EXPECT_EQ(text_encoder_mapped_weights(published), int64_t{3} * 10240 * 4096);
  EXPECT_EQ(text_encoder_mapped_weights(published, 4, 4), int64_t{3} * 2560 * 4096);
  EXPECT_EQ(text_encoder_mapped_weights(published, 3), int64_t{2 * 3414 + 10240} * 4096);
  EXPECT_EQ(text_encoder_mapped_weights(published, 4, 2), int64_t{2 * 2560 + 5120} * 4096);
  EXPECT_EQ(text_encoder_buffer_bytes(published, DType::kBF16), size_t{2} * 10240 * 4096 * 2);
  const TextEncoderUse use{512, 512, DType::kBF16, 1, 2};
  const size_t mib = size_t{1} << 20;
  const size_t values = (2 + 4) * 4 * mib + 10 * mib + 8 * mib, packed_rows = 20 * mib;
  EXPECT_GT(text_encoder_workspace_bytes(published, use), values + packed_rows);
  EXPECT_LT(text_encoder_workspace_bytes(published, use), values + packed_rows + 3 * mib);
  // Rows are what it grows with; parts share all but the residual stream.
  EXPECT_LT(text_encoder_workspace_bytes(published, {64, 64, DType::kBF16, 1, 2}), 12 * mib);
  EXPECT_LT(text_encoder_workspace_bytes(published, {512, 512, DType::kBF16, 2, 1}), 55 * mib);
}

TEST(TextEncoder, RefusesIdsOutsideTheVocabulary) {
  const Recorded recorded;
  Stream stream(1);
  const auto encoder = recorded.encoder(DType::kF32, stream);
  const Tensor out(DType::kF32, {2, recorded.config.d_model});
  for (const int32_t id : {-1, static_cast<int32_t>(recorded.config.vocab_size)}) {
    EXPECT_THROW(encoder->encode(std::vector<int32_t>{3, id}, out), Error) << id;
  }
}

TEST(TextEncoder, RefusesTensorsThatDoNotFitTheConfig) {
  Recorded recorded;
  Stream stream(1);
  recorded.config.d_ff += 1;
  try {
    recorded.encoder(DType::kF32, stream);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("DenseReluDense.wi_0.weight"), std::string::npos) << error.what();
  }
  recorded.config.d_ff -= 1;
  recorded.config.num_layers += 1;
  EXPECT_THROW(recorded.encoder(DType::kF32, stream), Error);
}

}  // namespace
}  // namespace zoetrope::encoders
