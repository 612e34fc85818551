// The keys and values of a prompt and its image: who makes them, whose they are, what is refused.
#include "models/wan/transformer/text_context.h"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>

#include "base/error.h"
#include "models/wan/transformer/transformer_testing.h"

namespace zoetrope::wan {
namespace {

using testing::Job;
using testing::Model;

constexpr const char* kImageKeys = "pipelines/wan21_i2v";
constexpr const char* kPositions = "pipelines/wan21_flf2v";

void expect_same(const TensorView& a, const TensorView& b) {
  ASSERT_EQ(a.shape(), b.shape());
  EXPECT_EQ(golden::difference(golden::clone(a), golden::clone(b)).max_abs, 0);
}

std::shared_ptr<TextContext> joined(const Model& model, const TensorView& text, const TensorView& image,
                                    std::span<const int64_t> key_lengths = {}, const Probe& probe = {}) {
  const auto context = std::make_shared<TextContext>(model.weights, text, key_lengths, image);
  Stream stream(1);
  context->join(stream, probe);
  return context;
}

Tensor text_of(const Model& model, int64_t batch = 2) {
  return testing::waves({batch, 7, model.config.text_dim}, 0.73f);
}

TEST(TextContext, AFailureReachesEveryRank) {
  const Model model;
  const Tensor text = text_of(model);
  const auto context = std::make_shared<TextContext>(model.weights, text);
  std::mutex mutex;
  int failed = 0;
  comm::run_ranks(3, [&](comm::Communicator&) {
    Stream stream(1);
    try {
      context->join(stream, [](auto, const auto&) { throw Error("planted"); });
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      failed += std::string(error.what()) == "planted" ? 1 : 0;
    }
  });
  EXPECT_EQ(failed, 3);
}

TEST(TextContext, RefusesRowsThatDoNotFit) {
  const Model plain, keys(DType::kF32, kImageKeys), positions(DType::kF32, kPositions);
  const auto refused = [](const Model& model, const Shape& text, const Shape& image, const char* word) {
    try {
      const Tensor rows(DType::kF32, text);
      const Tensor picture = image.rank() > 0 ? Tensor(DType::kF32, image) : Tensor();
      TextContext(model.weights, rows, {}, picture ? picture.view() : TensorView());
      ADD_FAILURE() << word;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  const int64_t width = plain.config.text_dim, image = *keys.config.image_dim;
  refused(plain, {1, 4, width + 1}, {}, "text_dim");
  refused(plain, {1, 4, width}, {1, 4, image}, "takes text only");
  refused(keys, {1, 4, keys.config.text_dim}, {}, "looks at an image");
  refused(keys, {1, 4, keys.config.text_dim}, {1, 4, image + 1}, "image_dim");
  refused(keys, {3, 4, keys.config.text_dim}, {2, 4, image}, "rows for each of 3 samples");
  refused(positions, {1, 4, positions.config.text_dim}, {1, 17, image}, "34 rows");
}

// The image that all samples share is stored once, and has the effect of one per sample.
TEST(TextContext, AnImageMayBeShared) {
  const Model model(DType::kBF16, kImageKeys);
  const Tensor text = text_of(model), one = testing::waves({1, 5, *model.config.image_dim}, 0.53f);
  Tensor two(DType::kF32, {2, 5, *model.config.image_dim});
  for (int64_t b = 0; b < 2; ++b)
    std::memcpy(two.data<float>() + b * one.size(), one.data<float>(), one.view().bytes());
  const auto shared = joined(model, text, one), own = joined(model, text, two);
  ASSERT_EQ(shared->sources(), 2u);
  EXPECT_EQ(shared->rows(1), 5);
  for (size_t block = 0; block < model.weights->blocks.size(); ++block) {
    for (int64_t b = 0; b < 2; ++b) {
      expect_same(shared->keys(1, block, b).k, own->keys(1, block, b).k);
      expect_same(shared->keys(1, block, b).v, own->keys(1, block, b).v);
    }
    EXPECT_EQ(shared->keys(1, block, 0).k.raw(), shared->keys(1, block, 1).k.raw());
  }
}

// First and last frame, in one piece or in two.
TEST(TextContext, ImagesWithPositionsMayComeOneByOne) {
  const Model model(DType::kF32, kPositions);
  const Tensor text = text_of(model, 1), whole = testing::waves({1, 34, *model.config.image_dim}, 0.53f);
  const auto a = joined(model, text, whole);
  const auto b = joined(model, text, whole.view().reshape({2, 17, *model.config.image_dim}));
  expect_same(a->keys(1, 0, 0).k, b->keys(1, 0, 0).k);
  EXPECT_EQ(b->rows(1), 34);
}

// Without keys of its own an image's rows come before the text's, and a mask counts them in.
TEST(TextContext, WithoutKeysOfItsOwnAnImageLengthensTheText) {
  const Model keys(DType::kF32, kImageKeys);
  Model model = keys;
  model.config.added_kv_proj_dim.reset();
  model.weights = TransformerWeights::load(model.config, testing::open_weights(model.folder), DType::kF32);
  const Tensor text = text_of(model), image = testing::waves({2, 5, *model.config.image_dim}, 0.53f);
  std::map<std::string, Tensor> seen;
  const Probe see = [&](std::string_view name, const TensorView& value) {
    const TensorView rows = value.select(0, 1);
    seen[std::string(name)] = golden::clone(rows);
  };
  const std::vector<int64_t> lengths{7, 3};
  const auto context = joined(model, text, image, lengths, see), apart = joined(keys, text, image, lengths);
  ASSERT_EQ(context->sources(), 1u);
  EXPECT_EQ(context->rows(0), 12);
  EXPECT_EQ(context->keys(0, 1, 0).key_lengths[0], 12);
  EXPECT_EQ(context->keys(0, 1, 1).key_lengths[0], 8);
  // The text's part is what it is without an image; the image's comes from its embedding by the same weights.
  const TextContext::KeyRows both = context->keys(0, 1, 1), of_text = apart->keys(0, 1, 1);
  expect_same(both.k.slice(1, 5, 12), of_text.k);
  expect_same(both.v.slice(1, 5, 12), of_text.v);
  const int64_t d = model.config.inner_dim();
  const auto source = testing::open_weights(model.folder);
  const TensorView matrix = source->get("blocks.1.attn2.to_v.weight", {d, d}, DType::kF32);
  const TensorView bias = source->get("blocks.1.attn2.to_v.bias", {d}, DType::kF32);
  const Tensor& rows = seen.at("image_embedding");
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t n = 0; n < d; ++n) {
      double sum = bias.data<float>()[n];
      for (int64_t k = 0; k < d; ++k)
        sum += static_cast<double>(matrix.data<float>()[n * d + k]) * rows.data<float>()[row * d + k];
      ASSERT_NEAR(golden::clone(both.v).data<float>()[row * d + n], sum, 1e-5);
    }
  }
}

TEST(TextContext, HoldsWhatTheMemoryModelCounts) {
  for (const char* name : {"transformer_odd", kImageKeys, kPositions, "pipelines/wan21_vace"}) {
    const Model model(DType::kBF16, name);
    const TransformerConfig& config = model.config;
    const int64_t image_rows = config.image_dim ? config.pos_embed_seq_len.value_or(5) : 0;
    const Tensor text = text_of(model);
    const Tensor image = config.image_dim ? testing::waves({2, image_rows, *config.image_dim}, 0.53f) : Tensor();
    const auto context = joined(model, text, image ? image.view() : TensorView());
    int64_t bytes = 0;
    for (size_t source = 0; source < context->sources(); ++source)
      for (size_t block = 0; block < model.weights->blocks.size(); ++block)
        for (int64_t b = 0; b < 2; ++b) {
          const TextContext::KeyRows keys = context->keys(source, block, b);
          bytes += static_cast<int64_t>(keys.k.bytes() + keys.v.bytes());
        }
    EXPECT_EQ(text_context_bytes(config, 2, {7, image_rows}, DType::kBF16), bytes) << name;
  }
}

}  // namespace
}  // namespace zoetrope::wan
