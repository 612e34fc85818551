// What `zoetrope verify` finds: nothing in sound runs of every class of the family and every way to use the ranks, and
// every planted fault, with the layer where it was planted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zoetrope/mpi.h"

#include "base/project_folders.h"
#include "base/test_folder.h"
#include "comm/testing.h"
#include "io/weights/safetensors.h"
#include "io/weights/tensor_file.h"
#include "models/wan/reference/forward_stages.h"
#include "pipeline/run.h"
#include "pipeline/settings/generate_options.h"
#include "pipeline/verify.h"
#include "tensor/half.h"

namespace zoetrope::pipeline {
namespace {

namespace fs = std::filesystem;

// Settings as they are typed: "ranks=4 ulysses_shards=2".
GenerateOptions options_of(const std::string& model, const std::string& words) {
  GenerateOptions options;
  options.model = fs::path(model).is_absolute() ? model : fmt::format("{}/pipelines/{}", kGoldenFolder, model);
  options.prompt = "A red cat runs across the market at dawn.";
  options.negative_prompt = "grey";
  options.height = options.width = 80;
  options.num_frames = 9;
  options.num_inference_steps = 3;
  options.guidance_scale = 4;
  options.threads = 1;
  options.check_finite = false;  // a flipped byte may be one of an exponent
  OptionSet set = describe_options(options);
  std::istringstream all(words);
  for (std::string word; all >> word;) {
    const size_t file = word.find('@');
    if (file != std::string::npos) word.replace(file, 1, options.model + "/inputs/");
    // Frames of a video are in a folder of their own.
    if (word.ends_with("_video")) word += fmt::format("={}/tests/ranks/{}", kBuildFolder, word);
    set.set_argument(word);
  }
  return options;
}

using Wrap = std::function<std::unique_ptr<comm::Communicator>(comm::Communicator&)>;

VerifyReport verified(const GenerateOptions& options, const std::string& reference = {}, const Wrap& wrap = {}) {
  const int ranks = static_cast<int>(options.ranks.value_or(1));
  VerifySettings settings;
  settings.reference = reference;
  settings.rows = 0;
  OpenModel model(options);
  Verification verification(model, options, settings, ranks);
  comm::run_ranks(ranks, [&](comm::Communicator& world) {
    const std::unique_ptr<comm::Communicator> wrapped = wrap ? wrap(world) : nullptr;
    verification.run(wrapped ? *wrapped : world);
  });
  return verification.report();
}

// ---- sound runs -----------------------------------------------------------------------------------------------------

struct Sound {
  const char* model;
  const char* words;
};

constexpr Sound kSound[] = {
    {"wan21_t2v", ""},
    {"wan21_t2v", "dtype=float32"},
    {"wan21_t2v", "ranks=2 data_parallelism=2"},
    {"wan21_t2v", "ranks=3 data_parallelism=1 ulysses_shards=3"},
    {"wan21_t2v", "ranks=7 data_parallelism=1 ulysses_shards=1 dtype=float32"},
    {"wan21_t2v", "ranks=4 data_parallelism=1 ulysses_shards=2 mask_padding_tokens=true"},
    {"wan21_t2v", "ranks=4 data_parallelism=1 attention=ulysses_ring_custom_fixed_m"},
    {"wan21_t2v", "ranks=4 data_parallelism=1 ulysses_shards=1 ring_direction=open dtype=float32"},
    {"wan21_t2v_h6", "ranks=4 data_parallelism=1 tensor_parallelism=2 ulysses_shards=2"},
    {"wan21_t2v", "ranks=3 data_parallelism=1 attention=ring kv_exchange_dtype=int8"},
    {"wan21_t2v", "ranks=2 data_parallelism=1 ulysses_shards=2 kv_exchange_dtype=bf16 dtype=float32"},
    {"wan21_t2v", "ranks=3 data_parallelism=1 attention=ring shard_weights=4,1,2 dtype=float32"},
    {"wan21_t2v_h6", "ranks=4 data_parallelism=1 ulysses_shards=2 shard_weights=2,1,3,1"},
    {"wan21_t2v_h6", "ranks=3 data_parallelism=1 tensor_parallelism=3 dtype=float32"},
    {"wan21_t2v", "ranks=2 data_parallelism=1 cache=cfg num_inference_steps=8"},
    {"wan21_t2v", "ranks=2 cache=mag cache_ratios=1,1,1,1,1,1 num_inference_steps=6 cache_threshold=0.2"},
    {"wan21_t2v", "ranks=2 data_parallelism=1 cache=drift num_inference_steps=8 cache_threshold=0.3"},
    {"wan22_t2v", "ranks=2 data_parallelism=1 ulysses_shards=2"},
    {"wan22_t2v", "ranks=4 data_parallelism=2 dtype=float32"},
    {"wan22_ti2v", "ranks=2 data_parallelism=1 width=160 height=96"},
    {"wan22_ti2v", "ranks=3 data_parallelism=1 width=160 height=96 image=@image.png dtype=float32"},
    {"wan21_i2v", "ranks=2 data_parallelism=1 image=@image.png"},
    {"wan22_i2v", "ranks=2 data_parallelism=2 image=@image.png"},
    {"wan21_flf2v", "ranks=2 data_parallelism=1 image=@image.png last_image=@last_image.png dtype=float32"},
    {"wan21_vace", "ranks=3 data_parallelism=1 control_video mask=@mask_00.png num_frames=5 conditioning_scale=0.7"},
    {"wan22_animate",
     "ranks=3 data_parallelism=1 width=48 height=32 image=@image.png pose_video face_video "
     "mode=animate num_frames=10 segment_frame_length=5 dtype=float32"},
    {"wan22_animate",
     "ranks=2 data_parallelism=2 width=48 height=32 image=@image.png pose_video face_video "
     "mode=animate num_frames=10 segment_frame_length=5"},
    {"wan21_vace", "ranks=2 control_video reference_images=@reference_0.png num_frames=5 dtype=float32"},
    {"wan21_t2v", "ranks=3 data_parallelism=1 attention=ring dtype=int8 int8_layers=all"},
    {"wan21_t2v_h6", "ranks=4 data_parallelism=1 tensor_parallelism=2 ulysses_shards=2 dtype=int8 int8_layers=all"},
    {"wan21_t2v", "ranks=4 data_parallelism=1 tensor_parallelism=4 dtype=int8 int8_layers=all"},
    {"wan21_vace",
     "ranks=2 data_parallelism=1 control_video mask=@mask_00.png num_frames=5 dtype=int8 int8_layers=all"},
    {"wan22_animate",
     "ranks=2 data_parallelism=2 width=48 height=32 image=@image.png pose_video face_video "
     "mode=animate num_frames=10 segment_frame_length=5 dtype=int8 int8_layers=all"},
};

class SoundRun : public testing::TestWithParam<Sound> {};

TEST_P(SoundRun, IsInsideItsBounds) {
  const VerifyReport report = verified(options_of(GetParam().model, GetParam().words));
  EXPECT_EQ(report.outside, 0) << report.first_outside << "\n" << report.text(true);
  EXPECT_EQ(report.stages_checked, report.stages);
  EXPECT_GT(report.one_rank.values, 0);
  // Every step and branch has every stage, but those that a cache leaves out.
  const GenerateOptions options = options_of(GetParam().model, GetParam().words);
  OpenModel model(options);
  const bool cached = options.cache != sampling::StepCacheKind::kNone;
  const wan::TransformerConfig& config = model.folder.experts.front().config;
  const std::vector<wan::reference::Stage> stages = wan::reference::stages_of(config);
  const int64_t branches = options.guidance_scale > 1 ? 2 : 1, experts = std::ssize(model.folder.experts);
  const int64_t of_prompt = config.image_dim ? 2 : 1;
  const int64_t all = branches * (experts * of_prompt + options.num_inference_steps * (std::ssize(stages) - of_prompt));
  if (!cached) {
    EXPECT_EQ(report.stages, all);
    EXPECT_TRUE(report.reused.empty());
    return;
  }
  EXPECT_LT(report.stages, all);
  EXPECT_FALSE(report.reused.empty());
  for (const auto& [step, distance] : report.reused) EXPECT_GT(distance, 0) << "step " << step;
  EXPECT_EQ(std::ssize(report.latents), 1 + options.num_inference_steps);
}

std::string name_of(const testing::TestParamInfo<Sound>& run) {
  return fmt::format("{}_{}", run.param.model, run.index);
}

INSTANTIATE_TEST_SUITE_P(Family, SoundRun, testing::ValuesIn(kSound), name_of);

// ---- planted faults
// ---------------------------------------------------------------------------------------------------

// Changes a piece that the rank has received from another: `before` is the piece of that size that came before it.
using Change = std::function<void(std::span<std::byte> piece, std::span<const std::byte> before)>;

// The `index`-th piece of exchanges named `operation` that one rank receives from another is changed.
class ChangedCommunicator final : public comm::WrappedCommunicator {
 public:
  struct State {
    std::string operation;
    int index;
    Change change;
    int seen = 0;
    bool changed = false;
    std::map<size_t, std::vector<std::byte>> before = {};
  };
  ChangedCommunicator(comm::Communicator& inner, std::shared_ptr<State> state)
      : WrappedCommunicator(inner), state_(std::move(state)) {}
  ChangedCommunicator(std::unique_ptr<comm::Communicator> inner, std::shared_ptr<State> state)
      : WrappedCommunicator(std::move(inner)), state_(std::move(state)) {}

  comm::Work exchange(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives,
                      const char* operation) override {
    comm::Work work = inner().exchange(sends, receives, operation);
    if (operation != state_->operation) return work;
    work.wait();  // the test is in no hurry
    for (const comm::Segment& piece : receives) {
      if (piece.bytes == 0 || piece.peer == rank()) continue;
      const std::span<std::byte> bytes(static_cast<std::byte*>(piece.data), piece.bytes);
      std::vector<std::byte>& before = state_->before[piece.bytes];
      std::vector<std::byte> sent(bytes.begin(), bytes.end());
      if (state_->seen++ == state_->index) {
        state_->change(bytes, before);
        state_->changed = true;
      }
      before = std::move(sent);
    }
    return {};
  }
  std::unique_ptr<comm::Communicator> split(int color, int key) override {
    return std::make_unique<ChangedCommunicator>(inner().split(color, key), state_);
  }

 private:
  std::shared_ptr<State> state_;
};

void flip_byte(std::span<std::byte> piece, std::span<const std::byte>) {
  piece[comm::FaultyCommunicator::flipped_byte(piece.size())] ^= std::byte{0xff};
}
void deliver_the_one_before(std::span<std::byte> piece, std::span<const std::byte> before) {
  ASSERT_EQ(before.size(), piece.size());
  std::copy(before.begin(), before.end(), piece.begin());
}
// By a row of a head of twelve float32.
void shift(std::span<std::byte> piece, std::span<const std::byte>) {
  std::rotate(piece.begin(), piece.begin() + 12 * sizeof(float), piece.end());
}
void drop_a_part(std::span<std::byte> piece, std::span<const std::byte>) {
  std::fill_n(piece.begin() + static_cast<std::ptrdiff_t>(piece.size() / 2), piece.size() / 8, std::byte{0});
}

struct OnTheWay {
  const char* name;
  const char* words;
  const char* operation;
  int index;
  void (*change)(std::span<std::byte>, std::span<const std::byte>);
  const char* found;  // where it must be noticed
};

// Three steps of two blocks, guided; every rank but the last receives as it should.
constexpr const char *kRing = "ranks=3 data_parallelism=1 ulysses_shards=1 dtype=float32 attention=ring",
                     *kUlysses = "ranks=2 data_parallelism=1 ulysses_shards=2 dtype=float32",
                     *kTensor = "ranks=2 data_parallelism=1 tensor_parallelism=2 dtype=float32",
                     *kData = "ranks=2 data_parallelism=2 dtype=float32",
                     *kVae = "ranks=2 data_parallelism=1 ulysses_shards=2 vae_parallel=2 dtype=float32";
const OnTheWay kOnTheWay[] = {
    {"flipped_byte_of_a_ring_block", kRing, "ring hop", 0, flip_byte, "block.0.self_attention"},
    {"flipped_byte_of_a_later_block", kRing, "ring hop", 2, flip_byte, "block.1.self_attention"},
    {"stale_key_block", kRing, "ring hop", 3, deliver_the_one_before, "block.1.self_attention"},
    {"stale_key_block_of_a_step", kRing, "ring hop", 4, deliver_the_one_before, "block.0.self_attention"},
    {"shifted_key_block", kRing, "ring hop", 2, shift, "block.1.self_attention"},
    {"dropped_tile_of_keys", kRing, "ring hop", 0, drop_a_part, "block.0.self_attention"},
    {"flipped_byte_of_queries", kUlysses, "ulysses exchange", 0, flip_byte, "block.0.self_attention"},
    {"flipped_byte_of_keys", kUlysses, "ulysses exchange", 3, flip_byte, "block.1.self_attention"},
    {"stale_queries", kUlysses, "ulysses exchange", 2, deliver_the_one_before, "block.1.self_attention"},
    {"shifted_queries", kUlysses, "ulysses exchange", 2, shift, "block.1.self_attention"},
    {"flipped_byte_of_a_result", kUlysses, "ulysses output exchange", 1, flip_byte, "block.1.self_attention"},
    {"dropped_tile_of_a_result", kUlysses, "ulysses output exchange", 0, drop_a_part, "block.0.self_attention"},
    {"stale_result", kUlysses, "ulysses output exchange", 1, deliver_the_one_before, "block.1.self_attention"},
    {"flipped_byte_of_a_velocity", kData, "guidance gather", 0, flip_byte, "latents"},
    {"flipped_byte_of_a_halo", kVae, "halo rows", 3, flip_byte, "frames"},
    {"stale_velocity", kData, "guidance gather", 1, deliver_the_one_before, "latents"},
};

class FaultOnTheWay : public testing::TestWithParam<OnTheWay> {};

TEST_P(FaultOnTheWay, IsFound) {
  const OnTheWay& fault = GetParam();
  const GenerateOptions options = options_of("wan21_t2v", fault.words);
  const int last = static_cast<int>(*options.ranks) - 1;
  const auto state = std::make_shared<ChangedCommunicator::State>();
  const VerifyReport report = verified(options, {}, [&](comm::Communicator& world) {
    const bool victim = world.rank() == last;
    auto own = victim ? state : std::make_shared<ChangedCommunicator::State>();
    *own = {victim ? fault.operation : "", fault.index, fault.change};
    return std::make_unique<ChangedCommunicator>(world, own);
  });
  EXPECT_TRUE(state->changed);
  EXPECT_GT(report.outside, 0);
  // The first rank that is off may be another: what one has received it passes on.
  EXPECT_NE(report.first_outside.find(fmt::format(": {} is", fault.found)), std::string::npos)
      << report.first_outside << report.text(true);
}

INSTANTIATE_TEST_SUITE_P(Family, FaultOnTheWay, testing::ValuesIn(kOnTheWay),
                         [](const auto& fault) { return std::string(fault.param.name); });

// A copy of a recorded model in which a tensor of the transformer is changed, or the experts.
class ChangedModel {
 public:
  explicit ChangedModel(const std::string& model) {
    fs::copy(fmt::format("{}/pipelines/{}", kGoldenFolder, model), path(), fs::copy_options::recursive);
  }
  fs::path path() const { return folder_.path() / "model"; }

  void change(const std::string& name, void (*body)(const TensorView& values)) const {
    for (const auto& entry : fs::directory_iterator(path() / "transformer")) {
      if (entry.path().extension() != ".safetensors") continue;
      const auto stored = io::TensorFile::open(entry.path());
      if (!stored->contains(name)) continue;
      io::SafetensorsWriter writer;
      const Tensor changed(DType::kF32, stored->info(name).shape);
      std::memcpy(changed.view().raw(), stored->tensor(name).raw(), changed.view().bytes());
      body(changed);
      for (const auto& [other, info] : stored->tensors())
        writer.add(other, other == name ? changed.view() : stored->tensor(other));
      writer.write(entry.path());
      return;
    }
    FAIL() << "no tensor " << name;
  }
  void exchange_experts() const {
    fs::rename(path() / "transformer", path() / "other");
    fs::rename(path() / "transformer_2", path() / "transformer");
    fs::rename(path() / "other", path() / "transformer_2");
  }

 private:
  TestFolder folder_;
};

// The highest byte of the value in the middle: sign and exponent.
void flip_weight(const TensorView& w) {
  auto* const bytes = reinterpret_cast<unsigned char*>(w.data<float>() + w.size() / 2);
  bytes[sizeof(float) - 1] ^= 0xff;
}
// Every row is the one behind it, as of an offset that is a row too large.
void shift_rows(const TensorView& w) {
  const int64_t row = w.rank() > 1 ? w.size() / w.extent(0) : 1;
  std::rotate(w.data<float>(), w.data<float>() + row, w.data<float>() + w.size());
}
// A sixteenth is missing, as of a tile that nobody has computed.
void drop_rows(const TensorView& w) {
  std::fill_n(w.data<float>() + w.size() / 2, std::max<int64_t>(1, w.size() / 16), 0.0f);
}
void round_to_bf16(const TensorView& w) {
  for (int64_t i = 0; i < w.size(); ++i) w.data<float>()[i] = to_float(to_bfloat16(w.data<float>()[i]));
}

struct InWeights {
  const char* name;
  const char* tensor;
  void (*change)(const TensorView&);
  const char* found;
  const char* words = "dtype=float32";
};

const InWeights kInWeights[] = {
    {"flipped_byte_of_q", "blocks.1.attn1.to_q.weight", flip_weight, "block.1.self_attention"},
    {"flipped_byte_of_v", "blocks.0.attn1.to_v.weight", flip_weight, "block.0.self_attention"},
    {"flipped_byte_of_a_projection", "blocks.0.attn1.to_out.0.weight", flip_weight, "block.0.cross_attention"},
    {"flipped_byte_of_cross_keys", "blocks.1.attn2.to_k.weight", flip_weight, "block.1.cross_attention"},
    {"flipped_byte_of_a_feed_forward", "blocks.1.ffn.net.2.weight", flip_weight, "block.1"},
    {"flipped_byte_of_a_bias", "blocks.0.ffn.net.0.proj.bias", flip_weight, "block.0"},
    {"flipped_byte_of_a_modulation", "blocks.1.scale_shift_table", flip_weight, "block.1"},
    {"flipped_byte_of_the_head", "proj_out.weight", flip_weight, "proj_out"},
    {"flipped_byte_of_patches", "patch_embedding.weight", flip_weight, "patch_embedding"},
    {"flipped_byte_in_bf16", "blocks.0.attn1.to_k.weight", flip_weight, "block.0.self_attention", "dtype=bf16"},
    {"shifted_rows_of_k", "blocks.1.attn1.to_k.weight", shift_rows, "block.1.self_attention"},
    {"shifted_norm", "blocks.0.attn1.norm_q.weight", shift_rows, "block.0.self_attention"},
    {"shifted_rows_in_bf16", "blocks.1.ffn.net.0.proj.weight", shift_rows, "block.1", "dtype=bf16"},
    {"dropped_rows_of_v", "blocks.1.attn1.to_v.weight", drop_rows, "block.1.self_attention"},
    {"dropped_rows_of_the_text", "condition_embedder.text_embedder.linear_2.weight", drop_rows, "text_embedding"},
    {"dropped_rows_in_bf16", "blocks.0.ffn.net.2.weight", drop_rows, "block.0", "dtype=bf16"},
    {"bf16_norm", "blocks.1.attn1.norm_k.weight", round_to_bf16, "block.1.self_attention"},
    {"bf16_matrix", "blocks.0.attn2.to_out.0.weight", round_to_bf16, "block.0.cross_attention"},
    {"bf16_modulation", "blocks.1.scale_shift_table", round_to_bf16, "block.1.self_attention"},
    {"bf16_time_embedding", "condition_embedder.time_embedder.linear_1.weight", round_to_bf16, "temb"},
    {"flipped_byte_of_the_time_in_bf16", "condition_embedder.time_embedder.linear_2.bias", flip_weight, "temb",
     "dtype=bf16"},
    {"bf16_head", "scale_shift_table", round_to_bf16, "proj_out"},
    {"flipped_byte_in_int8", "blocks.1.attn1.to_v.weight", flip_weight, "block.1.self_attention",
     "dtype=int8 int8_layers=all"},
    {"shifted_rows_in_int8", "blocks.1.ffn.net.0.proj.weight", shift_rows, "block.1", "dtype=int8 int8_layers=all"},
    {"dropped_rows_in_int8", "blocks.0.attn2.to_out.0.weight", drop_rows, "block.0.cross_attention",
     "dtype=int8 int8_layers=all"},
};

class FaultInWeights : public testing::TestWithParam<InWeights> {};

TEST_P(FaultInWeights, IsFound) {
  const InWeights& fault = GetParam();
  const ChangedModel model("wan21_t2v");
  model.change(fault.tensor, fault.change);
  const std::string whole = fmt::format("{}/pipelines/wan21_t2v", kGoldenFolder);
  const VerifyReport report = verified(options_of(model.path().string(), fault.words), whole);
  EXPECT_GT(report.outside, 0);
  const auto outside = [&](const VerifiedValue& value) { return value.tensor == fault.found && value.of_bound > 1; };
  EXPECT_TRUE(std::any_of(report.float64.worst.begin(), report.float64.worst.end(), outside)) << report.text(true);
  const auto is_first = [&](const char* name) {
    return report.first_outside.find(fmt::format(": {} is", name)) != std::string::npos;
  };
  EXPECT_TRUE(is_first(fault.found) || is_first(fault.tensor)) << report.first_outside << report.text(true);
}

INSTANTIATE_TEST_SUITE_P(Family, FaultInWeights, testing::ValuesIn(kInWeights),
                         [](const auto& fault) { return std::string(fault.param.name); });

TEST(Fault, WrongExpertIsFound) {
  const ChangedModel model("wan22_t2v");
  model.exchange_experts();
  const std::string whole = fmt::format("{}/pipelines/wan22_t2v", kGoldenFolder);
  const VerifyReport report = verified(options_of(model.path().string(), "ranks=2"), whole);
  EXPECT_GT(report.outside, 0);
  EXPECT_NE(report.first_outside.find("the prompt, transformer, "), std::string::npos) << report.first_outside;
}

}  // namespace
}  // namespace zoetrope::pipeline
