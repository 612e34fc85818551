#include "pipeline/model_files/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "zoetrope/communicator.h"

#include "base/test_folder.h"
#include "pipeline/ranks/agreement.h"
#include "pipeline/test_model.h"

namespace zoetrope::pipeline {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string fingerprint_of(const ModelCopy& model) { return fingerprint(ModelFolder::open(model.path())); }

TEST(Fingerprint, IsOfTheContentsAndNotOfThePlace) {
  const ModelCopy one("wan21_t2v"), other("wan21_t2v");
  const std::string lines = fingerprint_of(one);
  EXPECT_EQ(lines, fingerprint_of(other));
  for (const char* file :
       {"model_index.json", "scheduler/scheduler_config.json", "tokenizer/tokenizer.json", "text_encoder/config.json",
        "text_encoder/model.safetensors.index.json", "text_encoder/model-00002-of-00002.safetensors",
        "transformer/config.json", "transformer/diffusion_pytorch_model-00003-of-00003.safetensors", "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors"}) {
    EXPECT_THAT(lines, HasSubstr(std::string("model/") + file + "=")) << file;
  }
}

// What two ranks with these folders are told.
std::string disagreement(const ModelCopy& first, const ModelCopy& second) {
  const std::string lines[] = {fingerprint_of(first), fingerprint_of(second)};
  return error_of(
      [&] { comm::run_ranks(2, [&](comm::Communicator& world) { require_agreement(world, lines[world.rank()]); }); });
}

TEST(Fingerprint, OtherSettingsAreRefusedByTheNameOfTheirFile) {
  const ModelCopy one("wan21_t2v"), other("wan21_t2v");
  EXPECT_EQ(disagreement(one, other), "no error");
  other.replace("scheduler/scheduler_config.json", "\"flow_shift\": 3.0", "\"flow_shift\": 5.0");
  EXPECT_THAT(disagreement(one, other), AllOf(HasSubstr("rank 1 has model/scheduler/scheduler_config.json="),
                                              HasSubstr("where rank 0 has model/scheduler/scheduler_config.json=")));
}

TEST(Fingerprint, ATokenizerFileElsewhereCounts) {
  const ModelCopy one("wan21_t2v");
  ModelFolder model = ModelFolder::open(one.path());
  const TestFolder folder;
  model.tokenizer_folder = folder / "spiece.model";
  std::ofstream(model.tokenizer_folder) << "pieces";
  const std::string lines = fingerprint(model);
  EXPECT_THAT(lines, HasSubstr("\nspiece.model="));
  std::ofstream(model.tokenizer_folder) << "others";
  EXPECT_NE(fingerprint(model), lines);
}

// One bit in the middle of a file, with the same header: as of a LoRA that was merged into attention alone.
TEST(Fingerprint, OtherWeightsAreRefused) {
  const ModelCopy one("wan22_t2v"), other("wan22_t2v");
  const auto file = other.path() / "transformer_2" / "diffusion_pytorch_model.safetensors";
  const io::TensorInfo weight = io::TensorFile::open(file)->tensors().at("blocks.0.attn1.to_q.weight");
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(weight.offset + weight.bytes / 2);
  bytes.seekg(middle);
  const int byte = bytes.get();
  bytes.seekp(middle);
  bytes.put(static_cast<char>(byte ^ 1));
  bytes.close();
  EXPECT_THAT(disagreement(one, other), HasSubstr("model/transformer_2/diffusion_pytorch_model.safetensors="));
}

// They are measured at other timesteps.
TEST(Fingerprint, ExpertsWithTheSameWeightsDiffer) {
  const ModelCopy model("wan22_t2v");
  std::filesystem::remove_all(model.path() / "transformer_2");
  std::filesystem::copy(model.path() / "transformer", model.path() / "transformer_2",
                        std::filesystem::copy_options::recursive);
  const ModelFolder folder = ModelFolder::open(model.path());
  EXPECT_NE(transformer_identity(folder, 0), transformer_identity(folder, 1));
}

}  // namespace
}  // namespace zoetrope::pipeline
