#include "pipeline/model_files/comfy_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/json.h"
#include "base/test_folder.h"
#include "io/weights/test_files.h"
#include "pipeline/model_files/config_folder.h"
#include "pipeline/model_files/known_models.h"
#include "pipeline/model_files/model_folder.h"
#include "pipeline/model_files/original_repository.h"
#include "pipeline/planning/planned_run.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

// ComfyUI's folder of models with files of known models, all zeros: they have no blocks on the disk.
class ComfyFolder : public testing::Test {
 protected:
  // A component of `model` as root/file.
  fs::path put(const std::string& file, const std::string& model, const std::string& component) const {
    const auto config = JsonObject::load(config_folder() / model / component / "config.json");
    std::string header = "{";
    int64_t bytes = 0;
    for (const io::TensorSpec& spec : component_of(component, "CLIPVisionModel", config).tensors) {
      const int64_t size = spec.shape.size() * 2;
      header += fmt::format(R"({}"{}": {{"dtype": "BF16", "shape": {}, "data_offsets": [{}, {}]}})",
                            bytes == 0 ? "" : ", ", spec.name, spec.shape.to_string(), bytes, bytes + size);
      bytes += size;
    }
    const fs::path path = root() / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << io::safetensors_bytes(header + "}", "");
    fs::resize_file(path, fs::file_size(path) + static_cast<uintmax_t>(bytes));
    return path;
  }
  void put_others() const {
    put("text_encoders/umt5_xxl.safetensors", "wan2.1_t2v_1.3b", "text_encoder");
    put("vae/wan_2.1_vae.safetensors", "wan2.1_t2v_1.3b", "vae");
    put("vae/wan2.2_vae.safetensors", "wan2.2_ti2v_5b", "vae");
  }
  fs::path root() const { return folder_ / "models"; }
  GenerateOptions found(const fs::path& model, const std::string& transformer = "") const {
    GenerateOptions options;
    options.model = model.string();
    options.transformer = transformer;
    return with_found_files(options);
  }
  std::string refusal(const fs::path& model, const std::string& transformer = "") const {
    return error_of([&] { found(model, transformer); });
  }

 private:
  TestFolder folder_;
};

TEST_F(ComfyFolder, AModelIsFoundInIt) {
  put("unet/wan2.1_t2v_1.3B.safetensors", "wan2.1_t2v_1.3b", "transformer");
  put_others();
  std::ofstream(root() / "vae" / "put_vae_here");
  std::ofstream(root() / "vae" / "damaged.safetensors") << "no";
  EXPECT_TRUE(is_comfy_folder(root()));
  EXPECT_FALSE(is_comfy_folder(root() / "vae"));
  const GenerateOptions options = found(root());
  EXPECT_EQ(fs::path(options.model).filename(), "wan2.1_t2v_1.3b");
  EXPECT_THAT(options.transformer, EndsWith("models/unet/wan2.1_t2v_1.3B.safetensors"));
  EXPECT_THAT(options.text_encoder, EndsWith("text_encoders/umt5_xxl.safetensors"));
  EXPECT_THAT(options.vae, EndsWith("vae/wan_2.1_vae.safetensors"));
  EXPECT_EQ(options.image_encoder, "");
  // A plan of it has these files, whose text encoder is smaller than the published one.
  GenerateOptions given;
  given.model = root().string();
  const PlannedRun planned(given);
  EXPECT_EQ(planned.memory.configs.stored.text_encoder, DType::kBF16);
  EXPECT_TRUE(planned.missing_files.empty());
  given.model = "wan2.1_t2v_1.3b";
  EXPECT_EQ(PlannedRun(given).memory.configs.stored.text_encoder, DType::kF32);
}

TEST_F(ComfyFolder, TheTransformerMayBeNamedAlone) {
  put("diffusion_models/wan2.1_t2v_1.3B.safetensors", "wan2.1_t2v_1.3b", "transformer");
  const fs::path ti2v = put("diffusion_models/wan/wan2.2_ti2v_5B.safetensors", "wan2.2_ti2v_5b", "transformer");
  put_others();
  for (const auto& [model, name] : {std::pair(fs::path(), ti2v.string()), std::pair(root(), ti2v.string()),
                                    std::pair(root(), std::string("wan/wan2.2_ti2v_5B.safetensors"))}) {
    const GenerateOptions options = found(model, name);
    EXPECT_EQ(fs::path(options.model).filename(), "wan2.2_ti2v_5b");
    EXPECT_EQ(options.transformer, ti2v);
    EXPECT_THAT(options.vae, EndsWith("vae/wan2.2_vae.safetensors"));
  }
  EXPECT_THAT(refusal(root()),
              AllOf(HasSubstr("diffusion_models/wan/wan2.2_ti2v_5B.safetensors, diffusion_models/wan2.1_t2v_1.3B"),
                    HasSubstr("transformer=")));
}

TEST_F(ComfyFolder, ExpertsAreFoundByTheirNames) {
  const fs::path high = put("diffusion_models/wan2.2_t2v_high_noise.safetensors", "wan2.2_t2v_a14b", "transformer");
  const fs::path low = put("diffusion_models/wan2.2_t2v_low_noise.safetensors", "wan2.2_t2v_a14b", "transformer");
  put_others();
  for (const auto& options : {found(root()), found("", high.string())}) {
    EXPECT_EQ(fs::path(options.model).filename(), "wan2.2_t2v_a14b");
    EXPECT_EQ(options.transformer, high);
    EXPECT_EQ(options.transformer_2, low);
  }
  put("diffusion_models/wan2.2_i2v_low_noise.safetensors", "wan2.2_i2v_a14b", "transformer");
  EXPECT_EQ(found("", high.string()).transformer_2, low);
  EXPECT_THAT(refusal(root()), HasSubstr("choose one with transformer="));
}

TEST_F(ComfyFolder, AFolderKeepsTheWeightsThatItHas) {
  const fs::path high = put("diffusion_models/wan2.2_t2v_high_noise.safetensors", "wan2.2_t2v_a14b", "transformer");
  put("diffusion_models/wan2.2_t2v_low_noise.safetensors", "wan2.2_t2v_a14b", "transformer");
  put_others();
  const fs::path model = root() / "a14b";
  fs::copy(config_folder() / "wan2.2_t2v_a14b", model, fs::copy_options::recursive);
  std::ofstream(model / "transformer_2" / "diffusion_pytorch_model.safetensors");
  std::ofstream(model / "text_encoder" / "model.safetensors.index.json");
  const GenerateOptions options = found(model, high.string());
  EXPECT_EQ(options.model, model);
  EXPECT_EQ(options.transformer, high);
  EXPECT_EQ(options.transformer_2, "");
  EXPECT_EQ(options.text_encoder, "");
  EXPECT_THAT(options.vae, EndsWith("vae/wan_2.1_vae.safetensors"));
}

TEST_F(ComfyFolder, SeveralFilesOrNoneAreRefused) {
  put("diffusion_models/wan2.1_t2v_1.3B.safetensors", "wan2.1_t2v_1.3b", "transformer");
  put("clip/t5xxl.safetensors", "wan2.1_t2v_1.3b", "vae");
  EXPECT_THAT(refusal(root()), AllOf(HasSubstr("text_encoders/ or clip/ holds no text_encoder of this model"),
                                     HasSubstr("clip/t5xxl.safetensors: is a VAE, but a text encoder is needed"),
                                     HasSubstr("name its file as text_encoder=FILE")));
  put_others();
  put("clip/umt5_other.safetensors", "wan2.1_t2v_1.3b", "text_encoder");
  EXPECT_THAT(refusal(root()), AllOf(HasSubstr("clip/umt5_other.safetensors, text_encoders/umt5_xxl.safetensors"),
                                     HasSubstr("choose one with text_encoder=")));
  const fs::path cut = root() / "vae" / "wan_2.1_vae.safetensors";
  fs::resize_file(cut, fs::file_size(cut) - 7);
  fs::remove(root() / "clip" / "umt5_other.safetensors");
  EXPECT_THAT(refusal(root()), AllOf(HasSubstr("there are vae/wan2.2_vae.safetensors, vae/wan_2.1_vae.safetensors; "),
                                     HasSubstr(cut.string() + ": is truncated: 7 bytes are missing")));
}

TEST_F(ComfyFolder, ARepositoryOfTheAuthorsIsTaken) {
  const auto describe_as = [&](const std::string& folder, const std::string& name) {
    std::ofstream(root() / folder / "config.json") << fmt::format(R"({{"_class_name": "{}", "dim": 1536}})", name);
  };
  put("one/diffusion_pytorch_model.safetensors", "wan2.1_t2v_1.3b", "transformer");
  describe_as("one", "WanModel");
  fs::create_directories(root() / "one" / "google" / "umt5-xxl");
  EXPECT_THAT(refusal(root() / "one"), AllOf(HasSubstr("PyTorch pickles"), HasSubstr("text_encoder= and vae=")));
  GenerateOptions options;
  options.model = (root() / "one").string();
  options.text_encoder = "t5.safetensors";
  options.vae = "vae.safetensors";
  const GenerateOptions found = with_found_files(options);
  EXPECT_EQ(fs::path(found.model).filename(), "wan2.1_t2v_1.3b");
  EXPECT_EQ(found.transformer, root() / "one");
  EXPECT_EQ(found.tokenizer, root() / "one" / "google" / "umt5-xxl");
  EXPECT_EQ(found.text_encoder, "t5.safetensors");
  for (const char* expert : {"two/high_noise_model", "two/low_noise_model"}) {
    put(std::string(expert) + "/diffusion_pytorch_model.safetensors", "wan2.2_t2v_a14b", "transformer");
    describe_as(expert, "WanModel");
  }
  options.model = (root() / "two").string();
  EXPECT_EQ(fs::path(with_found_files(options).model).filename(), "wan2.2_t2v_a14b");
  EXPECT_EQ(with_found_files(options).transformer_2, root() / "two" / "low_noise_model");
  for (const char* expert : {"vace/high_noise_model", "vace/low_noise_model"}) {
    put(std::string(expert) + "/diffusion_pytorch_model.safetensors", "wan2.2_vace_fun_a14b", "transformer");
    describe_as(expert, "VaceWanTransformer3DModel");  // as VideoX-Fun names it
    EXPECT_TRUE(has_original_config(root() / expert));
  }
  options.model = (root() / "vace").string();
  EXPECT_EQ(fs::path(with_found_files(options).model).filename(), "wan2.2_vace_fun_a14b");
  put("animate/diffusion_pytorch_model.safetensors", "wan2.2_animate_14b", "transformer");
  describe_as("animate", "WanAnimateModel");
  options.model = (root() / "animate").string();
  options.image_encoder = "clip.safetensors";
  EXPECT_EQ(fs::path(with_found_files(options).model).filename(), "wan2.2_animate_14b");
  options.image_encoder = "";
  // Its transformer can be converted, and a run of it planned.
  const ComponentAlone alone = open_alone(root() / "one", "");
  EXPECT_EQ(alone.component.name, "transformer");
  EXPECT_EQ(alone.config.parent_path().parent_path().filename(), "wan2.1_t2v_1.3b");
  EXPECT_THAT(error_of([&] { open_alone(root() / "two", ""); }),
              AllOf(HasSubstr("whole model"), HasSubstr("two/high_noise_model")));
  EXPECT_EQ(open_alone(root() / "two" / "high_noise_model", "").component.name, "transformer");
  put("one/vae.safetensors", "wan2.1_t2v_1.3b", "vae");
  put("one/t5.safetensors", "wan2.1_t2v_1.3b", "text_encoder");
  GenerateOptions whole = options;
  whole.model = (root() / "one").string();
  whole.text_encoder = (root() / "one/t5.safetensors").string();
  whole.vae = (root() / "one/vae.safetensors").string();
  const PlannedRun planned(whole);
  EXPECT_EQ(planned.model.experts[0].config.num_layers, 30);
  EXPECT_GT(planned.memory.configs.transformer_file_bytes, 0);
  put("other/diffusion_pytorch_model.safetensors", "wan2.1_t2v_1.3b", "transformer");
  describe_as("other", "AnotherModel");
  options.model = (root() / "other").string();
  EXPECT_EQ(with_found_files(options).model, options.model);
}

TEST_F(ComfyFolder, OtherFoldersStayAsTheyAre) {
  GenerateOptions options;
  options.model = "nowhere";
  options.transformer = "nothing.safetensors";
  const GenerateOptions same = with_found_files(options);
  EXPECT_EQ(same.model, "nowhere");
  EXPECT_EQ(same.transformer, "nothing.safetensors");
  EXPECT_EQ(same.vae, "");
}

}  // namespace
}  // namespace zoetrope::pipeline
