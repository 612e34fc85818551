// Random weights as a run computes with them, and as synthesize writes them.
#include "pipeline/model_files/synthesize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/disk_limit.h"
#include "base/test_folder.h"
#include "io/weights/tensor_file.h"
#include "models/encoders/tensor_tables.h"
#include "models/wan/tensor_tables.h"
#include "pipeline/generate.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/settings/dtype_word.h"
#include "pipeline/test_model.h"
#include "tensor/half.h"
#include "text/tokenizer.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

SynthesizeOptions tiny(const fs::path& out, const char* model = "wan21_t2v") {
  SynthesizeOptions options;
  options.model = recorded_model(model).string();
  options.out = out.string();
  options.threads = 2;
  return options;
}

// Every tensor that the folder holds has the value that `random` makes, rounded to what it is stored as.
void expect_equal(const ComponentWeights& stored, const ComponentWeights& random, int64_t expected_tensors) {
  const auto formulas = random.source(2);
  const io::Checkpoint& checkpoint = *stored.checkpoint();
  EXPECT_EQ(static_cast<int64_t>(checkpoint.names().size()), expected_tensors);
  for (const std::string& name : checkpoint.names()) {
    const TensorView view = checkpoint.view(name);
    const Tensor made = Tensor::uninitialized(view.dtype(), view.shape());
    formulas->read(name, made);
    EXPECT_EQ(std::memcmp(view.raw(), made.view().raw(), view.bytes()), 0) << name;
  }
}

TEST(Synthesize, WritesWhatRandomWeightsAre) {
  const TestFolder folder;
  SynthesizeOptions options = tiny(folder / "model");
  options.seed = 7;
  int64_t bytes = 0, done_at_end = 0, begun = 0;
  bytes = synthesize(options, {[&](const std::string&, int64_t done, int64_t total) {
                                 if (done == 0) ++begun;
                                 if (done == total) done_at_end += total;
                               },
                               {}});
  EXPECT_EQ(begun, 3);
  EXPECT_EQ(done_at_end, bytes);
  const auto written = ModelFolder::open(folder / "model");
  const auto random = ModelFolder::open_random(options.model, 7);
  const auto tensors = [](const io::TensorTable& table) { return static_cast<int64_t>(table.size()); };
  expect_equal(written.experts[0].weights, random.experts[0].weights,
               tensors(wan::transformer_tensors(random.experts[0].config)));
  expect_equal(written.text_encoder, random.text_encoder,
               tensors(encoders::text_encoder_tensors(random.text_encoder_config)));
  expect_equal(written.vae, random.vae, tensors(wan::vae_tensors(random.vae_config)));
  EXPECT_EQ(written.experts[0].weights.checkpoint()->info("blocks.0.ffn.net.2.weight").dtype, DType::kF32);
  EXPECT_EQ(written.text_encoder.checkpoint()->info("shared.weight").dtype, DType::kBF16);
  // Another seed, other values.
  const auto other = ModelFolder::open_random(options.model, 8).experts[0].weights.source(1);
  const TensorView first = written.experts[0].weights.checkpoint()->view("proj_out.bias");
  const Tensor made = Tensor::uninitialized(DType::kF32, first.shape());
  other->read("proj_out.bias", made);
  EXPECT_NE(std::memcmp(first.raw(), made.view().raw(), first.bytes()), 0);
}

TEST(Synthesize, FewerLayersAreTheFirstOnesAndFloat32IsKept) {
  const TestFolder folder;
  SynthesizeOptions options = tiny(folder / "model", "wan22_t2v");
  options.layers = 1;
  options.text_layers = 1;
  options.dtype = "bf16";
  options.text_dtype = "float32";
  synthesize(options);
  const auto written = ModelFolder::open(folder / "model");
  const auto random = ModelFolder::open_random(options.model);
  ASSERT_EQ(written.experts.size(), 2u);
  EXPECT_EQ(written.text_encoder_config.num_layers, 1);
  for (size_t i = 0; i < 2; ++i) {
    const Expert& expert = written.experts[i];
    EXPECT_EQ(expert.config.num_layers, 1);
    expect_equal(expert.weights, random.experts[i].weights,
                 static_cast<int64_t>(wan::transformer_tensors(expert.config).size()));
    for (const auto& [name, dtype] :
         {std::pair("blocks.0.scale_shift_table", DType::kF32), std::pair("blocks.0.norm2.weight", DType::kF32),
          std::pair("blocks.0.attn1.norm_q.weight", DType::kBF16)}) {
      EXPECT_EQ(expert.weights.checkpoint()->info(name).dtype, dtype) << name;
    }
  }
  // The experts are two models.
  const auto* one = written.experts[0].weights.checkpoint();
  const auto* two = written.experts[1].weights.checkpoint();
  const TensorView a = one->view("proj_out.weight"), b = two->view("proj_out.weight");
  EXPECT_NE(std::memcmp(a.raw(), b.raw(), a.bytes()), 0);
}

TEST(Synthesize, RefusalsLeaveNothing) {
  const TestFolder folder;
  const auto refusal = [&](const SynthesizeOptions& options) { return error_of([&] { synthesize(options); }); };
  SynthesizeOptions options = tiny(folder / "model");
  options.layers = 3;
  EXPECT_THAT(refusal(options), AllOf(HasSubstr("layers=3"), HasSubstr("the model has only 2")));
  options = tiny(folder / "model");
  options.components = "transformer,clip";
  EXPECT_THAT(refusal(options), HasSubstr("'clip' is none of"));
  EXPECT_THAT(refusal(tiny("")), HasSubstr("out: name the folder"));
  options = tiny(folder / "model");
  options.model = "wan2.1_t2v_1.3";
  EXPECT_THAT(refusal(options),
              AllOf(HasSubstr("wan2.1_t2v_1.3 is neither"), HasSubstr("did you mean wan2.1_t2v_1.3b")));
  {
    const DiskLimit limit(4096);
    EXPECT_THAT(refusal(tiny(folder / "model")), HasSubstr("cannot be written"));
  }
  EXPECT_THAT(error_of([&] {
                synthesize(tiny(folder / "model"), {{}, [] { return true; }});
              }),
              HasSubstr("interrupted"));
  EXPECT_EQ(fs::directory_iterator(folder.path()), fs::directory_iterator());
  synthesize(tiny(folder / "model"));
  EXPECT_THAT(refusal(tiny(folder / "model")), HasSubstr("exists already"));
}

// 1000 layers of matrices [32768, 32768]: 40 TB, more than any test machine has.
TEST(Synthesize, TooLittleDiskIsRefusedWithNumbers) {
  const ModelCopy model("wan21_t2v");
  model.replace("transformer/config.json", "\"num_attention_heads\": 4", "\"num_attention_heads\": 256");
  model.replace("transformer/config.json", "\"attention_head_dim\": 12", "\"attention_head_dim\": 128");
  model.replace("transformer/config.json", "\"num_layers\": 2", "\"num_layers\": 1000");
  const TestFolder folder;
  SynthesizeOptions options = tiny(folder / "out");
  options.model = model.path().string();
  EXPECT_THAT(error_of([&] { synthesize(options); }), AllOf(HasSubstr("GB are needed"), HasSubstr("GB left")));
}

TEST(RandomModel, ShippedConfigsAreThePublishedSizes) {
  const auto parameters = [](const ComponentWeights&, const io::TensorTable& table) {
    return io::totals(table).parameters;
  };
  std::map<std::string, int64_t> transformers;
  for (const std::string& name : config_names()) {
    const auto model = ModelFolder::open_random(model_or_config(name));
    transformers[name] = parameters(model.experts[0].weights, wan::transformer_tensors(model.experts[0].config));
    EXPECT_EQ(model.experts.size(), name.ends_with("_a14b") ? 2u : 1u) << name;
    // wan.md section 1.1: 11 361 851 208 bytes of BF16 with their header, 126 892 531 parameters.
    EXPECT_NEAR(
        2.0 * static_cast<double>(io::totals(encoders::text_encoder_tensors(model.text_encoder_config)).parameters),
        11361851208.0, 100e3);
    EXPECT_EQ(io::totals(wan::vae_tensors(model.vae_config)).parameters,
              name == "wan2.2_ti2v_5b" ? 704688668 : 126892531);
  }
  // 57 154 077 760 bytes with their headers; 5.676 GB.
  ASSERT_EQ(transformers.size(), 12u);
  EXPECT_NEAR(4.0 * static_cast<double>(transformers["wan2.1_t2v_14b"]), 57154077760.0, 1e6);
  EXPECT_EQ(transformers["wan2.1_t2v_14b"], transformers["wan2.2_t2v_a14b"]);
  EXPECT_NEAR(4.0 * static_cast<double>(transformers["wan2.1_t2v_1.3b"]), 5.676e9, 1e6);
}

TEST(RandomModel, ShippedTokenizerKnowsEveryLetter) {
  const auto tokenizer = text::Tokenizer::load(config_folder() / "tokenizer");
  // As T5TokenizerFast of transformers 5.23 encodes it with this file.
  EXPECT_EQ(
      tokenizer.encode("a red Cat on a market, 4k!"),
      (std::vector<int32_t>{5, 22, 35, 34, 4, 59, 31, 50, 19, 44, 5, 17, 31, 48, 41, 35, 50, 104, 4, 87, 41, 93, 1}));
  EXPECT_LT(tokenizer.vocab_size(), 256384);
  const std::vector<int32_t> unknown = tokenizer.encode("\u732b");  // no letter of it
  EXPECT_EQ(unknown.back(), tokenizer.eos_id());
}

struct Scale {
  double rms = 0;
  double spread = 0;  // of the values about their mean
};

Scale scale_of(const TensorView& tensor) {
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double v = tensor.data<float>()[i];
    EXPECT_TRUE(std::isfinite(v)) << i;
    sum += v;
    squares += v * v;
  }
  const auto n = static_cast<double>(tensor.size());
  return {std::sqrt(squares / n), std::sqrt(std::max(0.0, squares / n - sum / n * sum / n))};
}

// A model of the published depths that is narrow, computed whole: values stay finite and about 1, and differ from place
// to place. 0.05 and 20 are wide of what well-scaled layers make (0.2 to 5) and far from what badly scaled ones make,
// which is 2 to the power of the depth away.
class RandomRun : public testing::TestWithParam<const char*> {};

TEST_P(RandomRun, IsFiniteAndInScale) {
  const ModelCopy model("wan21_t2v");
  model.replace("transformer/config.json", "\"num_layers\": 2", "\"num_layers\": 40");
  model.replace("transformer/config.json", "\"attention_head_dim\": 12", "\"attention_head_dim\": 32");
  model.replace("transformer/config.json", "\"ffn_dim\": 64", "\"ffn_dim\": 384");
  model.replace("text_encoder/config.json", "\"num_layers\": 2", "\"num_layers\": 24");
  model.replace("vae/config.json", "\"base_dim\": 3", "\"base_dim\": 12");
  for (const char* component : {"transformer", "text_encoder", "vae"}) {
    for (const auto& entry : fs::directory_iterator(model.path() / component)) {
      if (entry.path().filename() != "config.json") fs::remove(entry.path());
    }
  }
  fs::remove_all(model.path() / "tokenizer");  // the one that ships serves
  const TestFolder folder;
  GenerateOptions options;
  options.model = model.path().string();
  options.weights = WeightSource::kRandom;
  options.prompt = "a red cat";
  options.height = 32;
  options.width = 48;
  options.num_frames = 5;
  options.num_inference_steps = 2;
  options.dtype = options.text_encoder_dtype = options.vae_dtype = dtype_of(GetParam());
  options.output = (folder / "out").string();
  options.dump = (folder / "dump").string();
  options.threads = 2;
  generate(options);
  const auto run = io::TensorFile::open(folder / "dump" / "run.safetensors");
  for (const char* name : {"prompt_embeds", "velocity.0", "velocity.1", "latents.1", "frames"}) {
    const Scale scale = scale_of(run->tensor(name));
    EXPECT_GT(scale.spread, 0.05) << name;
    EXPECT_LT(scale.rms, 20) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(, RandomRun, testing::Values("float32", "bf16"));

}  // namespace
}  // namespace zoetrope::pipeline
