#include "io/weights/named_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "io/weights/safetensors.h"
#include "io/weights/test_files.h"

namespace zoetrope::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Tensor numbers(const Shape& shape, float first) {
  Tensor tensor(DType::kF32, shape);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.data<float>()[i] = first + static_cast<float>(i);
  return tensor;
}

// A component whose original code joins a and b, transposes c, and gives d further axes.
TensorTable table() {
  TensorTable tensors = {{.name = "a.weight", .shape = {2, 3}},
                         {.name = "b.weight", .shape = {2, 3}},
                         {.name = "c.weight", .shape = {2, 3}},
                         {.name = "d.weight", .shape = {3}}};
  tensors[0].alias(NamingScheme::kOriginal) = {.name = "ab.weight", .part = 0, .parts = 2};
  tensors[1].alias(NamingScheme::kOriginal) = {.name = "ab.weight", .part = 1, .parts = 2};
  tensors[2].alias(NamingScheme::kOriginal) = {.name = "C", .transposed = true};
  tensors[3].alias(NamingScheme::kOriginal) = {.name = "D.weight"};
  return tensors;
}

class NamedSourceTest : public testing::Test {
 public:
  NamedSourceTest& with(const std::string& name, const Shape& shape, float first) {
    tensors_.emplace_back(name, numbers(shape, first));
    return *this;
  }
  NamedSourceTest& original(const std::string& prefix = "") {
    return with(prefix + "ab.weight", {4, 3}, 0)
        .with(prefix + "C", {3, 2}, 20)
        .with(prefix + "D.weight", {1, 3, 1}, 30);
  }
  std::shared_ptr<const WeightSource> open() {
    SafetensorsWriter writer;
    for (const auto& [name, tensor] : tensors_) writer.add(name, tensor);
    writer.write(folder_ / "w.safetensors");
    tensors_.clear();
    const auto stored = checkpoint_source(Checkpoint::open_file(folder_ / "w.safetensors"));
    const FileRules rules{{"model.", "m."}, [](const std::string& name) { return name == "left.weight"; }};
    names_ = std::make_shared<const NamesInFile>(names_in_file(*stored, table_, used_, rules));
    return named_source(stored, names_);
  }
  std::string refusal() {
    return error_of([&] { open(); });
  }
  std::vector<float> read(const WeightSource& source, const std::string& name) {
    Tensor values(DType::kF32, source.info(name).shape);
    source.read(name, values);
    return {values.data<float>(), values.data<float>() + values.size()};
  }

  TestFolder folder_;
  TensorTable table_ = table(), used_ = table_;
  std::vector<std::pair<std::string, Tensor>> tensors_;
  std::shared_ptr<const NamesInFile> names_;
};

TEST_F(NamedSourceTest, TensorsHaveTheNamesAndShapesOfTheTable) {
  const auto source = original("m.").with("m.left.weight", {1}, 0).with("vae.conv.weight", {1}, 0).open();
  EXPECT_EQ(names_->prefix, "m.");
  EXPECT_EQ(names_->other_components, 1u);
  EXPECT_EQ(source->names(), (std::vector<std::string>{"a.weight", "b.weight", "c.weight", "d.weight"}));
  EXPECT_EQ(read(*source, "a.weight"), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(read(*source, "b.weight"), (std::vector<float>{6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(read(*source, "c.weight"), (std::vector<float>{20, 22, 24, 21, 23, 25}));
  EXPECT_EQ(read(*source, "d.weight"), (std::vector<float>{30, 31, 32}));
  for (const TensorSpec& spec : used_) EXPECT_EQ(source->info(spec.name).shape, spec.shape) << spec.name;
  EXPECT_EQ(source->mapped("b.weight").data<float>()[0], 6);
  EXPECT_FALSE(source->mapped("c.weight"));
  float two[2];
  for (const auto& [name, first] : {std::pair("b.weight", 8.0F), std::pair("c.weight", 24.0F)}) {
    source->read_range(name, {2, 4}, TensorView(two, DType::kF32, {2}));
    EXPECT_EQ(two[0], first) << name;
  }
  EXPECT_LT(source->info("a.weight").offset, source->info("b.weight").offset);
}

TEST_F(NamedSourceTest, TheHubsOwnNamesAreKnownToo) {
  const auto source = with("a.weight", {2, 3}, 5)
                          .with("b.weight", {2, 3}, 0)
                          .with("c.weight", {2, 3}, 0)
                          .with("d.weight", {3}, 0)
                          .open();
  EXPECT_FALSE(names_->scheme);
  EXPECT_EQ(read(*source, "a.weight")[0], 5);
}

TEST_F(NamedSourceTest, ATiedTensorMayHaveEitherNameOrBoth) {
  table_[0].alias(NamingScheme::kTied) = {.name = "tied.weight"};
  const auto rest = [&]() -> NamedSourceTest& {
    return with("b.weight", {2, 3}, 0).with("c.weight", {2, 3}, 0).with("d.weight", {3}, 0);
  };
  EXPECT_EQ(read(*rest().with("tied.weight", {2, 3}, 7).open(), "a.weight")[0], 7);
  EXPECT_EQ(read(*rest().with("tied.weight", {2, 3}, 7).with("a.weight", {2, 3}, 5).open(), "a.weight")[0], 5);
}

// As in GGUF files of stable-diffusion.cpp.
TEST_F(NamedSourceTest, TheOuterTwoOfFiveAxesMayBeOne) {
  table_ = used_ = {{.name = "p.weight", .shape = {2, 3, 1, 2, 2}}};
  const auto source = with("p.weight", {6, 1, 2, 2}, 0).open();
  EXPECT_EQ(source->info("p.weight").shape, (Shape{2, 3, 1, 2, 2}));
  EXPECT_EQ(read(*source, "p.weight").back(), 23);
  EXPECT_EQ(source->mapped("p.weight").shape(), (Shape{2, 3, 1, 2, 2}));
  EXPECT_THAT(with("p.weight", {3, 2, 2, 2}, 0).refusal(), HasSubstr("'p.weight' has shape [3, 2, 2, 2]"));
  EXPECT_THAT(with("p.weight", {2, 3, 4}, 0).refusal(), HasSubstr("expected [2, 3, 1, 2, 2]"));
}

TEST_F(NamedSourceTest, ParametersOfAnotherModelAreRefused) {
  for (const char* name : {"img_emb.emb_pos", "x.pos_embed", "scale_shift_table", "n.gamma", "e.padding_tokens"}) {
    EXPECT_THAT(original().with(name, {1}, 0).refusal(), HasSubstr(name));
  }
}

TEST_F(NamedSourceTest, WhatIsNotUsedMayBeMissing) {
  used_.resize(2);
  EXPECT_TRUE(with("ab.weight", {4, 3}, 0).open()->contains("a.weight"));
}

TEST_F(NamedSourceTest, WhatDoesNotFitIsNamedAsInTheFile) {
  EXPECT_THAT(with("model.ab.weight", {4, 3}, 0).with("model.C", {3, 2}, 0).refusal(),
              AllOf(HasSubstr("w.safetensors: tensor 'model.D.weight' is missing"), HasSubstr("have 3 of 4")));
  EXPECT_THAT(with("ab.weight", {2, 3}, 0).with("C", {3, 2}, 0).with("D.weight", {3}, 0).refusal(),
              AllOf(HasSubstr("'ab.weight' has shape [2, 3]"), HasSubstr("expected [4, 3]")));
  EXPECT_THAT(with("ab.weight", {4, 3}, 0).with("C", {2, 3}, 0).with("D.weight", {3}, 0).refusal(),
              AllOf(HasSubstr("'C' has shape [2, 3]"), HasSubstr("expected [3, 2]")));
  EXPECT_THAT(original().with("e.weight", {1}, 0).with("note", {1}, 0).refusal(),
              AllOf(HasSubstr("1 tensors that this model does not have: e.weight"), Not(HasSubstr("note"))));
  EXPECT_THAT(with("x", {1}, 0).refusal(), HasSubstr("have 0 of 4"));
}

}  // namespace
}  // namespace zoetrope::io
