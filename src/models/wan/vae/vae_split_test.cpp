// Rows of the picture split over parts, here threads that hand one another rows through shared memory.
#include <gtest/gtest.h>

#include <barrier>
#include <cstring>
#include <thread>

#include "zoetrope/error.h"

#include "models/wan/vae/vae.h"
#include "models/wan/vae/vae_test_util.h"

namespace zoetrope::wan {
namespace {

// What the parts of one picture share.
struct Meeting {
  explicit Meeting(int count) : parts(count), barrier(count), first(size()), last(size()), mine(size()) {}
  size_t size() const { return static_cast<size_t>(parts); }
  int parts;
  std::barrier<> barrier;
  std::vector<TensorView> first, last, mine;
};

class SharedExchange : public kernels::HaloExchange {
 public:
  SharedExchange(Meeting& meeting, int part) : meeting_(meeting), part_(part) {}
  int parts() const override { return meeting_.parts; }
  int part() const override { return part_; }
  void exchange(const TensorView& first, const TensorView& last, const TensorView& above,
                const TensorView& below) override {
    for (const TensorView* row : {&first, &last, &above, &below}) EXPECT_TRUE(row->contiguous());
    const auto me = static_cast<size_t>(part_);
    meeting_.first[me] = first;
    meeting_.last[me] = last;
    meeting_.barrier.arrive_and_wait();
    if (part_ > 0) take(above, meeting_.last[me - 1]);
    if (part_ + 1 < meeting_.parts) take(below, meeting_.first[me + 1]);
    meeting_.barrier.arrive_and_wait();
    ++exchanges;
  }
  void gather_rows(const TensorView& mine, IndexRange own, const TensorView& all) override {
    EXPECT_TRUE(mine.contiguous() && all.contiguous());
    EXPECT_EQ(mine.extent(0), own.size());
    meeting_.mine[static_cast<size_t>(part_)] = mine;
    meeting_.barrier.arrive_and_wait();
    int64_t row = 0;
    for (const TensorView& part : meeting_.mine) {
      take(all.slice(0, row, row + part.extent(0)), part);
      if (&part == &meeting_.mine[static_cast<size_t>(part_)]) {
        EXPECT_EQ(row, own.begin);
      }
      row += part.extent(0);
    }
    EXPECT_EQ(row, all.extent(0));
    meeting_.barrier.arrive_and_wait();
  }

  int exchanges = 0;

 private:
  static void take(const TensorView& to, const TensorView& from) {
    ASSERT_EQ(to.shape().to_string(), from.shape().to_string());
    std::memcpy(to.raw(), from.raw(), from.bytes());
  }
  Meeting& meeting_;
  int part_;
};

// body(part, split) on a thread each, latent rows cut unevenly: later parts get more.
template <typename Body>
void run_parts(int parts, int64_t rows, Body&& body) {
  Meeting meeting(parts);
  std::vector<std::thread> threads;
  for (int part = 0; part < parts; ++part) {
    threads.emplace_back([&, part] {
      SharedExchange exchange(meeting, part);
      const IndexRange own{rows * part / parts, rows * (part + 1) / parts};
      body(part, kernels::RowSplit{&exchange, own});
      EXPECT_GT(exchange.exchanges, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Clip {
  int64_t rows, columns, frames;
  int parts;
};
constexpr Clip kClips[] = {{5, 3, 3, 3}, {2, 4, 4, 2}, {7, 2, 2, 4}, {3, 3, 3, 1}};

std::vector<VaeConfig> configs() {
  VaeConfig deeper = small_config();
  deeper.num_res_blocks = 2;
  deeper.temporal_downsample = {false, true};
  std::vector<VaeConfig> all = residual_configs();
  all.insert(all.end(), {small_config(), deeper});
  return all;
}

// Every op but the attention gives the same bits for a row wherever it lies; attention may group its rows otherwise. So
// four times the float32 floor, as between any two orders of summing; in bf16, where a last bit may flip a rounding,
// four times the error of rounding after every op.
void expect_same(const TensorView& split, const TensorView& whole, const TensorView& exact, const TensorView& floor) {
  const Difference d = difference(split, whole), f = difference(floor, exact);
  EXPECT_LE(d.relative_l2, 4 * f.relative_l2);
  EXPECT_LE(d.max_abs, 4 * f.max_abs);
}

class VaeSplit : public testing::TestWithParam<std::tuple<DType, kernels::ConvAlgorithm>> {};

TEST_P(VaeSplit, DecodesAsOnePartWould) {
  const auto [dtype, algorithm] = GetParam();
  for (const VaeConfig& config : configs()) {
    const auto source = test_weights(config);
    const auto plain = source;
    const auto weights =
        std::make_shared<const VaeWeights>(config, plain, VaeUse{VaeParts::kDecoder, dtype, algorithm});
    const int64_t factor = config.spatial_factor();
    for (const Clip& clip : kClips) {
      SCOPED_TRACE(testing::Message() << clip.rows << " rows over " << clip.parts);
      const Tensor latents = random_tensor({config.z_dim, clip.frames, clip.rows, clip.columns}, 3);
      const Shape shape{config.video_frames(clip.frames), factor * clip.rows, factor * clip.columns, 3};
      const Tensor whole(DType::kF32, shape), joined(DType::kF32, shape);
      const auto into = [](Stream& stream, const TensorView& video) {
        return [&stream, video](int64_t first, const TensorView& frames) {
          copy(stream, video.slice(0, first, first + frames.extent(0)), frames);
        };
      };
      Stream stream(1);
      VaeDecoder(weights).decode(stream, latents, into(stream, whole));
      run_parts(clip.parts, clip.rows, [&](int part, const kernels::RowSplit& split) {
        Stream own(part == 0 ? 2 : 1);
        VaeDecoder decoder(weights);
        const TensorView rows = joined.view().slice(1, factor * split.rows.begin, factor * split.rows.end);
        decoder.decode(own, latents, into(own, rows), {}, split);
      });
      const Tensor exact = reference_decode<double>(config, source, latents);
      const Tensor floor = dtype == DType::kF32 ? reference_decode<float>(config, source, latents)
                                                : reference_decode<double>(config, source, latents, dtype);
      expect_same(joined, whole, exact, floor);
    }
  }
}

TEST_P(VaeSplit, EncodesAsOnePartWould) {
  const auto [dtype, algorithm] = GetParam();
  for (const VaeConfig& config : configs()) {
    const auto source = test_weights(config);
    const auto plain = source;
    const auto weights =
        std::make_shared<const VaeWeights>(config, plain, VaeUse{VaeParts::kEncoder, dtype, algorithm});
    const int64_t factor = config.spatial_factor();
    for (const Clip& clip : kClips) {
      for (const int64_t left_over : {0, 1, 3}) {  // rows that are too few for one of the latent
        SCOPED_TRACE(testing::Message() << clip.rows << " rows and " << left_over << " over " << clip.parts);
        const Tensor video = random_tensor(
            {1 + 4 * (clip.frames - 1), factor * clip.rows + left_over, factor * clip.columns + left_over, 3}, 4);
        VaeEncoder encoder(weights);
        const Tensor whole(DType::kF32, encoder.moments_shape(video.shape()));
        const Tensor joined(DType::kF32, whole.shape());
        Stream stream(1);
        encoder.encode(stream, video, whole);
        run_parts(clip.parts, clip.rows, [&](int part, const kernels::RowSplit& split) {
          Stream own(part == 0 ? 2 : 1);
          VaeEncoder mine(weights);
          mine.encode(own, video, joined.view().slice(2, split.rows.begin, split.rows.end), {}, split);
        });
        const Tensor exact = reference_encode<double>(config, source, video);
        const Tensor floor = dtype == DType::kF32 ? reference_encode<float>(config, source, video)
                                                  : reference_encode<double>(config, source, video, dtype);
        expect_same(joined, whole, exact, floor);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, VaeSplit,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(kernels::ConvAlgorithm::kDirect,
                                                          kernels::ConvAlgorithm::kWinograd)),
                         [](const auto& tested) {
                           const bool winograd = std::get<1>(tested.param) == kernels::ConvAlgorithm::kWinograd;
                           return std::string(dtype_name(std::get<0>(tested.param))) +
                                  (winograd ? "Winograd" : "Direct");
                         });

// Before attention, which may group its rows otherwise, a row has the same bits in every part: also where Winograd's
// tiles are cut, because parts begin with an odd row of the picture.
TEST(VaeSplitRows, HaveTheBitsOfTheWholePicture) {
  const VaeConfig config = small_config();
  const auto source = test_weights(config);
  constexpr int64_t kRowsOfLatents = 5;
  constexpr int kParts = 3;  // rows [0, 1), [1, 3), [3, 5)
  const Tensor latents = random_tensor({config.z_dim, 2, kRowsOfLatents, 4}, 3);
  for (const auto algorithm : {kernels::ConvAlgorithm::kDirect, kernels::ConvAlgorithm::kWinograd}) {
    const auto weights =
        std::make_shared<const VaeWeights>(config, source, VaeUse{VaeParts::kDecoder, DType::kF32, algorithm});
    const auto ignore = [](int64_t, const TensorView&) {};
    const auto keep = [](std::vector<Tensor>& seen) {
      return [&seen](std::string_view name, const TensorView& value) {
        if (name != "conv_in") return;
        Stream own(1);
        copy(own, seen.emplace_back(DType::kF32, value.shape()), value);  // [C, 1, H, W]
      };
    };
    std::vector<Tensor> whole;
    Stream stream(1);
    VaeDecoder(weights).decode(stream, latents, ignore, keep(whole));
    ASSERT_EQ(whole.size(), 2U);
    std::vector<std::vector<Tensor>> parts(kParts);
    run_parts(kParts, kRowsOfLatents, [&](int part, const kernels::RowSplit& split) {
      Stream own(1);
      VaeDecoder(weights).decode(own, latents, ignore, keep(parts[static_cast<size_t>(part)]), split);
    });
    for (int64_t part = 0; part < kParts; ++part) {
      const std::vector<Tensor>& mine = parts[static_cast<size_t>(part)];
      ASSERT_EQ(mine.size(), whole.size());
      const int64_t begin = kRowsOfLatents * part / kParts, end = kRowsOfLatents * (part + 1) / kParts;
      for (size_t frame = 0; frame < whole.size(); ++frame)
        EXPECT_EQ(difference(mine[frame], whole[frame].view().slice(2, begin, end)).max_abs, 0) << part;
    }
  }
}

// A part without rows has nothing to give its neighbours.
TEST(VaeSplitRefuses, PartsWithoutRows) {
  const VaeConfig config = small_config();
  const auto plain = test_weights(config);
  VaeDecoder decoder(std::make_shared<const VaeWeights>(config, plain, VaeUse{VaeParts::kDecoder}));
  Meeting meeting(1);
  SharedExchange exchange(meeting, 0);
  Stream stream(1);
  for (const IndexRange rows : {IndexRange{1, 1}, IndexRange{1, 3}, IndexRange{-1, 1}}) {
    EXPECT_THROW(decoder.decode(
                     stream, random_tensor({3, 1, 2, 2}, 1), [](int64_t, const TensorView&) {}, {},
                     kernels::RowSplit{&exchange, rows}),
                 Error);
  }
}

}  // namespace
}  // namespace zoetrope::wan
