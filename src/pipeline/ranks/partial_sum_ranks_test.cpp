// The sum over ranks, and what it is for: a text encoder divided over n ranks computes what one rank does, and notices
// a wrong byte.
#include "pipeline/ranks/partial_sum_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/index_range.h"
#include "comm/rank_test.h"
#include "comm/testing.h"
#include "models/encoders/partial_sum.h"
#include "models/encoders/tensor_tables.h"
#include "models/encoders/umt5.h"
#include "models/testing/golden.h"
#include "tensor/half.h"

namespace zoetrope::pipeline {
namespace {

// Of no size that two ranks could mistake, and whose float32 sum depends on the order.
float value_of(int rank, int64_t i) {
  return static_cast<float>((rank + 1) * 1000 + i % 997) / static_cast<float>(3 + (i * 7 + rank) % 11);
}

void check_sums(comm::Communicator& world) {
  PartialSumRanks sum(world, PartialSumRanks::kTextEncoder);
  Stream stream(2);
  EXPECT_EQ(sum.parts(), world.size());
  EXPECT_EQ(sum.part(), world.rank());
  // Fewer values than ranks, pieces of unequal size, more than a piece of a rank's share, and shrinking again.
  for (const int64_t count : {1, 5, 8, 4095, 70000, 12}) {
    Tensor values(DType::kF32, {count, 1});
    const auto fill = [&] {
      for (int64_t i = 0; i < count; ++i) values.data<float>()[i] = value_of(world.rank(), i);
    };
    fill();
    Tensor rows(DType::kBF16, {count, 3});
    const IndexRange mine = sum.add_up_rows(stream, values);
    EXPECT_EQ(mine, split_range(count, world.size(), world.rank()));
    for (int64_t i = 3 * mine.begin; i < 3 * mine.end; ++i)
      rows.data<BFloat16>()[i] = to_bfloat16(static_cast<float>(i % 251));
    sum.gather_rows(rows);
    int64_t lost = 0;
    for (int64_t i = 0; i < rows.size(); ++i) lost += to_float(rows.data<BFloat16>()[i]) != static_cast<float>(i % 251);
    EXPECT_EQ(lost, 0) << count << " rows on rank " << world.rank();
    fill();
    sum.add_up(stream, values);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i) {
      float expected = value_of(0, i);
      for (int rank = 1; rank < world.size(); ++rank) expected += value_of(rank, i);
      wrong += values.data<float>()[i] != expected;
    }
    EXPECT_EQ(wrong, 0) << count << " values on rank " << world.rank();
  }
}

ZT_RANK_TEST(PartialSumRanks, AddsInRankOrderEverywhere) { check_sums(comm); }

ZT_RANK_TEST(PartialSumRanks, SendsTwiceTheOthersShares) {
  PartialSumRanks sum(comm, PartialSumRanks::kTextEncoder);
  Stream stream(1);
  const int64_t count = 420 * comm.size();
  const Tensor values(DType::kF32, {420, comm.size()});
  comm.reset_counters();
  sum.add_up(stream, values);
  EXPECT_EQ(comm.counters().bytes_sent, 2 * 4 * count * (comm.size() - 1) / comm.size());
}

struct Case {
  golden::GoldenCase recorded{"umt5", "encoder.safetensors"};
  std::filesystem::path folder = recorded.root() / "pipelines/wan21_t2v/text_encoder";
  encoders::TextEncoderConfig config = encoders::TextEncoderConfig::load(folder / "config.json");
  std::shared_ptr<const io::WeightSource> source = io::checkpoint_source(io::Checkpoint::open(folder, "model"));
  std::vector<int64_t> lengths{11, 4};
  Tensor ids{DType::kI32, {2, 11}};

  Case() {
    for (int64_t i = 0; i < ids.size(); ++i) ids.data<int32_t>()[i] = static_cast<int32_t>(3 + i * 37 % 1000);
  }
  Tensor encode(DType dtype, encoders::PartialSum* sum, std::shared_ptr<const io::WeightSource> from = nullptr) const {
    Stream stream(1);
    Tensor out(DType::kF32, {2, 11, config.d_model});
    encoders::TextEncoder(from ? from : source, config, dtype, stream, sum).encode_batch(ids, lengths, out);
    return out;
  }
};

// Both are as far from float64 as the recorded float32 run is, times four at most (umt5_test), so that much together
// apart from one another.
double float32_limit(const Case& c) { return 2 * 4 * c.recorded.noise("f32_vs_f64", "last_hidden_state").rel_l2; }
// bf16 roundings fall elsewhere: another sample of bf16's own error, so within the tolerance of recorded bf16 runs.
double bf16_limit(const Case& c) { return 1.5 * c.recorded.noise("bf16_vs_f32", "last_hidden_state").rel_l2; }

ZT_RANK_TEST(TextEncoderRanks, ComputeWhatOneDoes) {
  const Case c;
  PartialSumRanks sum(comm, PartialSumRanks::kTextEncoder);
  const Tensor divided = c.encode(DType::kF32, &sum), alone = c.encode(DType::kF32, nullptr);
  const double error = golden::difference(divided, alone).rel_l2;
  EXPECT_LE(error, float32_limit(c));
  if (comm.size() == 1) {
    EXPECT_EQ(error, 0);
  }
  const Tensor narrow = c.encode(DType::kBF16, &sum), narrow_alone = c.encode(DType::kBF16, nullptr);
  EXPECT_LE(golden::difference(narrow, narrow_alone).rel_l2, bf16_limit(c));
  // The same bits on every rank.
  std::vector<float> all(static_cast<size_t>(divided.size() * comm.size()));
  comm.all_gather(divided.data<float>(), all.data(), divided.view().bytes());
  int64_t different = 0;
  for (size_t i = 0; i < all.size(); ++i) different += all[i] != divided.data<float>()[i % divided.size()];
  EXPECT_EQ(different, 0);
}

ZT_RANK_TEST(TextEncoderRanks, AFlippedByteIsNoticed) {
  if (comm.size() == 1) return;  // nothing is sent
  const Case c;
  const Tensor alone = c.encode(DType::kF32, nullptr);
  for (const char* operation : {PartialSumRanks::kTextEncoder.shares, PartialSumRanks::kTextEncoder.sums}) {
    // On one rank only: what it computes with from there on reaches the others.
    comm::FaultyCommunicator faulty(comm, operation, comm.rank() == 1 ? 0 : 1 << 30);
    PartialSumRanks sum(faulty, PartialSumRanks::kTextEncoder);
    const double error = golden::difference(c.encode(DType::kF32, &sum), alone).rel_l2;
    if (comm.rank() == 1) {
      EXPECT_TRUE(faulty.flipped());
    }
    EXPECT_FALSE(error <= float32_limit(c)) << operation << " on rank " << comm.rank();
  }
}

// Counts what is read of a source, and shows nothing in place. A `failing` tensor is found to be broken when its layer
// is reached: nobody asks earlier, as the first tensor already says that a buffer is needed.
class Watched final : public io::WeightSource {
 public:
  Watched(std::shared_ptr<const io::WeightSource> source, std::string failing = "")
      : source_(std::move(source)), failing_(std::move(failing)) {}
  bool contains(const std::string& name) const override { return source_->contains(name); }
  std::vector<std::string> names() const override { return source_->names(); }
  io::TensorInfo info(const std::string& name) const override { return source_->info(name); }
  std::string where(const std::string& name) const override { return source_->where(name); }
  TensorView mapped(const std::string& name) const override {
    if (name == failing_) fail("{}: tensor '{}' cannot be read", where(name), name);
    return {};
  }
  void read(const std::string& name, const TensorView& out) const override {
    count(name, out.size());
    source_->read(name, out);
  }
  void read_range(const std::string& name, IndexRange range, const TensorView& out) const override {
    count(name, range.size());
    source_->read_range(name, range, out);
  }
  std::map<std::string, int64_t> elements() const {
    const std::lock_guard lock(mutex_);
    return elements_;
  }

 private:
  void count(const std::string& name, int64_t elements) const {
    const std::lock_guard lock(mutex_);
    elements_[name] += elements;
  }
  std::shared_ptr<const io::WeightSource> source_;
  std::string failing_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, int64_t> elements_;
};

ZT_RANK_TEST(TextEncoderRanks, TogetherReadEveryMatrixOnce) {
  const Case c;
  PartialSumRanks sum(comm, PartialSumRanks::kTextEncoder);
  const auto watched = std::make_shared<Watched>(c.source);
  const Tensor divided = c.encode(DType::kF32, &sum, watched);
  EXPECT_LE(golden::difference(divided, c.encode(DType::kF32, nullptr)).rel_l2, float32_limit(c));
  int matrices = 0;
  const std::map<std::string, int64_t> mine = watched->elements();
  for (const io::TensorSpec& spec : encoders::text_encoder_tensors(c.config)) {
    if (!spec.shard_axis) continue;
    const auto found = mine.find(spec.name);
    const double all = comm.all_reduce_sum(found == mine.end() ? 0.0 : static_cast<double>(found->second));
    EXPECT_EQ(all, static_cast<double>(spec.shape.size())) << spec.name;
    ++matrices;
  }
  EXPECT_EQ(matrices, 7 * c.config.num_layers);
}

TEST(TextEncoderRanks, AnErrorOnOneEndsAllWithItsSentence) {
  const std::string broken = "encoder.block.1.layer.1.DenseReluDense.wo.weight";
  try {
    comm::run_ranks(3,
                    [&](comm::Communicator& world) {
                      const Case c;
                      PartialSumRanks sum(world, PartialSumRanks::kTextEncoder);
                      c.encode(DType::kF32, &sum,
                               world.rank() == 1 ? std::make_shared<Watched>(c.source, broken) : c.source);
                    },
                    {.timeout_seconds = 20});
    FAIL() << "nobody failed";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'" + broken + "' cannot be read"), std::string::npos) << error.what();
  }
}

TEST(TextEncoderRanks, ARankThatNeverComesIsNamed) {
  try {
    comm::run_ranks(2,
                    [&](comm::Communicator& world) {
                      const Case c;
                      // Nor sends what comes next, which would be taken for this.
                      comm::StalledCommunicator later(world, PartialSumRanks::kTextEncoder.sums, 1);
                      comm::StalledCommunicator stalled(later, PartialSumRanks::kTextEncoder.shares, 1);
                      stalled.set_step("the prompt's encoding");
                      PartialSumRanks sum(stalled, PartialSumRanks::kTextEncoder);
                      c.encode(DType::kF32, &sum);
                    },
                    {.timeout_seconds = 0.5});
    FAIL() << "nobody waited";
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find(PartialSumRanks::kTextEncoder.shares), std::string::npos) << what;
    EXPECT_NE(what.find("the prompt's encoding"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace zoetrope::pipeline
